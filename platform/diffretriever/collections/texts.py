"""Collections of text files: a folder of Markdown, plain text and HTML files, or one such file, one passage per file.

The id is the path within the folder. `%`, `#`, white space and control characters are percent-encoded, because ids
contain no white space and `#` precedes chunk numbers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote

import yaml

from diffretriever.collections.base import Collection
from diffretriever.collections.records import (
    BOM,
    BadRecord,
    Line,
    Passage,
    RefusedError,
    bad_record,
    checked_passage,
    decode,
    extra_fields,
)
from diffretriever.core.files import file_state, files_in, filesystem_of, is_file, open_input
from diffretriever.schemas.locations import StorePath

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

_MAX_BYTES = 16 << 20
"""Maximum size of a file; the longest novels have 4 MB."""
_UNFIT_FOR_ID = re.compile("[\\s%#\\x00-\\x1f\\x7f-\\x9f\\ufeff]")
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_LINE_END = re.compile(r"\r\n?")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t]*(?:#+[ \t]*)?$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-{2,})[ \t]*$")
_CHARSET_WITHIN = 1024
"""Bytes at the start of an HTML file that are searched for its character set."""
_NOT_TEXT = ("script", "style", "template", "noscript", "title")
_PARAGRAPHS = ("blockquote", "dl", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "section", "table", "ul")
_LINES = (
    *("address", "article", "aside", "caption", "dd", "details", "dialog", "div", "dt", "fieldset", "figcaption"),
    *("figure", "footer", "form", "header", "hr", "li", "main", "nav", "option", "summary", "tr"),
)
_CELLS = ("td", "th")
_APART = dict.fromkeys(_PARAGRAPHS, "\n\n") | dict.fromkeys(_LINES, "\n") | dict.fromkeys(_CELLS, " ")
"""HTML element → separator before and after its text."""

log = logging.getLogger(__name__)


class _File(NamedTuple):
    path: str
    """Path within the folder, with slashes."""
    state: str
    """Size and modification time."""


_Read: TypeAlias = tuple[str, str, Mapping[str, Any] | None]
"""Title, text and fields of the front matter."""


@dataclass(frozen=True, slots=True)
class TextsCollection(Collection):
    """The texts of a folder, ordered by path, or of a single file."""

    name: str
    root: Path | StorePath
    """Folder of the files."""
    shown: str
    """Prefix of paths in messages."""
    only: str | None = None
    """Name of the file, for a single file."""

    def records(self) -> Iterator[Passage | BadRecord]:
        """Yield one record per file, ordered by path."""
        return map(self._record, (file.path for file in self._files()))

    @property
    def holds_documents(self) -> bool:
        """Always true: files can be long."""
        return True

    def source_state(self) -> str:
        """Return a digest of the files' paths, sizes and modification times."""
        text = "".join(f"{file.path}\0{file.state}\n" for file in self._files())
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def inputs(self) -> list[Path | StorePath]:
        """Return the files."""
        return [self._at(file.path) for file in self._files()]

    def location(self) -> str:
        """Return the URI or resolved path of the folder or file."""
        place = self.root if self.only is None else self._at(self.only)
        return str(place.resolve() if isinstance(place, Path) else place)

    def _files(self) -> list[_File]:
        if self.only is None:
            return [file for file in _listed(self.root) if is_text(file.path)]
        path = self._at(self.only)
        return [_File(self.only, file_state(path))] if is_file(path) else []

    def _at(self, path: str) -> Path | StorePath:
        return self.root / path if isinstance(self.root, Path) else self.root / quote(path)

    def _record(self, path: str) -> Passage | BadRecord:
        with open_input(self._at(path)) as stream:
            data = stream.read(_MAX_BYTES + 1)
        try:
            return _passage(path, data)
        except RefusedError as refused:
            # File names that are not UTF-8 are shown with replacement characters.
            shown = os.fsencode(f"{self.shown}{path}").decode(errors="replace")
            return bad_record(shown, 1, str(refused), data)


def _passage(path: str, data: bytes) -> Passage:
    if len(data) > _MAX_BYTES:
        raise RefusedError(f"too long: more than {_MAX_BYTES} bytes")
    title, text, extra = READERS[_end_of(path)](data.removeprefix(BOM))
    title = title or PurePosixPath(path).stem
    return checked_passage(_UNFIT_FOR_ID.sub(lambda unfit: quote(unfit[0], safe=""), path), title, text, extra)


def open_texts_folder(folder: Path | StorePath, name: str, shown: str) -> TextsCollection | None:
    """Open a folder recursively; return None if it contains no texts. A warning counts skipped files."""
    files = _listed(folder)
    left_out = Counter(_end_of(file.path) or "without suffix" for file in files if not is_text(file.path))
    if left_out.total() == len(files):
        return None
    if left_out:
        counts = ", ".join(f"{count:,} {end}" for end, count in sorted(left_out.items()))
        log.warning("%s: %s files are no texts and are left out: %s", shown, f"{left_out.total():,}", counts)
    return TextsCollection(name, folder, f"{shown}/")


def open_text_file(file: Path | StorePath, name: str, shown: str) -> TextsCollection:
    """Open a single file."""
    # The target of a link without a suffix determines the format.
    target = file.resolve() if isinstance(file, Path) and not is_text(file.name) else file
    return TextsCollection(PurePosixPath(name).stem, target.parent, shown.removesuffix(file.name), target.name)


def is_text(name: str) -> bool:
    """Return whether a file name has the suffix of a text."""
    return _end_of(name) in READERS


def _end_of(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _listed(folder: Path | StorePath) -> list[_File]:
    """Return the files in a folder recursively, sorted by path, without hidden files and folders."""
    if isinstance(folder, Path):
        return sorted(_walked(folder))
    start = filesystem_of(folder)[1].rstrip("/") + "/"
    found = (_File(str(i.path).removeprefix(start), f"{i.size}:{i.mtime_ns}") for i in files_in(folder, deep=True))
    return sorted(file for file in found if not any(part.startswith(".") for part in file.path.split("/")))


def _walked(folder: Path) -> Iterator[_File]:
    # Links to folders are not followed: they can form cycles.
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(above, name) for name in names if not name.startswith(".")):
            if path.is_file():
                status = path.stat()
                yield _File(path.relative_to(folder).as_posix(), f"{status.st_size}:{status.st_mtime_ns}")


def _plain(data: bytes) -> _Read:
    return "", _decoded(data), None


def _markdown(data: bytes) -> _Read:
    """Split off front matter; the title is its `title`, or else the first heading."""
    text = _decoded(data)
    values, text = _without_front_matter(text)
    title = " ".join(str(values.get("title") or "").split())
    return title or _first_heading(text), text, extra_fields(values)


def _decoded(data: bytes) -> str:
    return _LINE_END.sub("\n", decode(Line(1, data, complete=True)))


def _without_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the fields of YAML front matter, and the text without it."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text
    try:
        values = yaml.safe_load(found[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text
    if not isinstance(values, dict):
        return {}, text
    return {str(name): value for name, value in values.items()}, text[found.end() :].lstrip("\n")


def _first_heading(text: str) -> str:
    """Return the first Markdown heading outside of code fences, or ""."""
    fence, above = "", ""
    for line in text.split("\n"):
        if opened := _FENCE.match(line):
            if not fence:
                fence = opened[1]
            elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif fence:
            continue
        elif found := _HEADING.match(line):
            return found[1]
        elif above.strip() and _UNDERLINE.match(line):
            return above.strip()
        above = "" if opened else line
    return ""


def _html(data: bytes) -> _Read:
    """Extract text without markup, scripts and styles; blocks start lines, blank lines surround paragraphs."""
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        soup = BeautifulSoup(_decoded_html(data), "html.parser")
    except (ParserRejectedMarkup, RecursionError) as error:
        raise RefusedError("malformed HTML: it cannot be parsed") from error
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for tag in soup(_NOT_TEXT):
        tag.decompose()
    return title, _text_of(soup), None


def _text_of(soup: BeautifulSoup) -> str:
    from bs4.element import NavigableString, PreformattedString, Tag

    pieces, within = list[str](), list[Tag]()
    for node in soup.descendants:
        while within and within[-1] is not node.parent:
            pieces.append(_APART.get(within.pop().name, ""))
        if isinstance(node, Tag):
            pieces.append("\n" if node.name == "br" else _APART.get(node.name, ""))
            within.append(node)
        # Comments and other invisible strings are preformatted strings.
        elif isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
            is_laid_out = "\n" in node and any(tag.name == "pre" for tag in within)
            pieces.append(node if is_laid_out else node.replace("\n", " "))
    lines = "\n".join(" ".join(line.split()) for line in "".join(pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _decoded_html(data: bytes) -> str:
    """Decode by the declared character set, or else as UTF-8."""
    from bs4.dammit import EncodingDetector

    named = EncodingDetector.find_declared_encoding(data[:_CHARSET_WITHIN], is_html=True)
    if named is None or named.replace("-", "").lower() == "utf8":
        return _decoded(data)
    try:
        return _LINE_END.sub("\n", data.decode(named))
    except (LookupError, UnicodeDecodeError) as error:
        raise RefusedError(f"wrong character set: it names {named[:40]!a}, by which it cannot be read") from error


READERS: dict[str, Callable[[bytes], _Read]] = {".htm": _html, ".html": _html, ".md": _markdown, ".txt": _plain}
"""File suffix → function that reads title and text from bytes."""

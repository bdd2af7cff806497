"""The built-in collection: the standard library's documentation, to be found by its summary lines."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

from diffretriever.collections.base import Passage, Query
from diffretriever.collections.beir import CORPUS, open_beir_folder, write_beir_folder
from diffretriever.collections.docstrings import documented_objects
from diffretriever.collections.files import FileCollection
from diffretriever.collections.validation import RefusedError, checked_passage
from diffretriever.files import cache_dir, whole_folder

PYDOC = "pydoc"
SPLIT = "test"

_FORMAT = 1
"""Raise when the collection's content changes: tables made from another format are another collection's."""

_MIN_TEXT_WORDS = 12
_MIN_QUERY_WORDS = 3
_MAX_QUERY_WORDS = 40

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)\.(?=\s|$)")
_SIGNATURE = re.compile(r"->|^[\w.]+\(")


def open_pydoc() -> FileCollection:
    """Open the documentation of the running interpreter's standard library; the first call builds it.

    One passage for each documented object: id and title are its qualified name, the text is its docstring
    without the summary. The summary is the query, split `test`, that is to find it.
    """
    version = ".".join(str(part) for part in sys.version_info[:3])
    folder = cache_dir() / f"{PYDOC}-{sys.implementation.name}-{version}-{sys.platform}-format{_FORMAT}"
    if not folder.is_dir():
        with whole_folder(folder) as unfinished:
            build(unfinished)
    return open_beir_folder(folder, PYDOC, PYDOC)


def build(folder: Path) -> None:
    """Write the collection as a BEIR folder."""
    passages, summaries = passages_and_summaries(documented_objects())
    # A judge of runs may leave out a passage with the query's own id, as for ArguAna.
    queries = [Query(f"summary:{name}", summary) for name, summary in summaries.items()]
    qrels = {f"summary:{name}": {name: 1} for name in summaries}
    write_beir_folder(folder, passages, queries, {SPLIT: qrels})
    # Every machine of a cluster builds its own: all must look like the same file.
    os.utime(folder / CORPUS, (0, 0))


def passages_and_summaries(docs: dict[str, str]) -> tuple[list[Passage], dict[str, str]]:
    """Turn qualified name → docstring into passages, and into the summaries that fit one passage only.

    Identical texts are kept once. An object without enough text beside its summary keeps the whole docstring,
    and none asks for it.
    """
    passages: dict[str, Passage] = {}
    summaries: dict[str, str] = {}
    asking: list[str] = []
    for name, doc in docs.items():
        summary, body = split_summary(doc)
        has_body = len(body.split()) >= _MIN_TEXT_WORDS
        passage = _passage(name, body if has_body else doc)
        if passage is None or passage.text in passages:
            continue
        passages[passage.text] = passage
        summaries[name] = summary
        if has_body and _is_question(summary):
            asking.append(name)
    shared = Counter(summary.casefold() for summary in summaries.values())
    unique = {name: summaries[name] for name in asking if shared[summaries[name].casefold()] == 1}
    return list(passages.values()), unique


def split_summary(doc: str) -> tuple[str, str]:
    """Split a cleaned docstring into its summary and the rest.

    The summary is the first sentence of the first paragraph, or all of it if no sentence ends; on one line.
    """
    paragraph, gap, rest = doc.strip().partition("\n\n")
    end = _SENTENCE_END.search(paragraph)
    if end is None:
        return " ".join(paragraph.split()), rest.strip()
    return " ".join(paragraph[: end.end()].split()), (paragraph[end.end() :] + gap + rest).strip()


def _passage(name: str, text: str) -> Passage | None:
    if len(text.split()) < _MIN_TEXT_WORDS:
        return None
    try:
        return checked_passage(name, name, text)
    except RefusedError:
        return None


def _is_question(summary: str) -> bool:
    # A signature is not what somebody would ask, and gives the name away.
    return _MIN_QUERY_WORDS <= len(summary.split()) <= _MAX_QUERY_WORDS and not _SIGNATURE.search(summary)

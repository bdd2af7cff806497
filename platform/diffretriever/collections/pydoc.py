"""Built-in collection: docstrings of the standard library, with their summary lines as queries.

Docstrings are parsed from source, without importing Python modules.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from diffretriever.collections.base import FileCollection
from diffretriever.collections.beir import CORPUS, open_beir_folder, write_beir_folder
from diffretriever.collections.records import Passage, Query, RefusedError, checked_passage
from diffretriever.core.files import cache_dir, whole_folder

PYDOC = "pydoc"

SPLIT = "test"

_FORMAT = 1
"""Version of the collection's content; increase it with every change."""

_MIN_TEXT_WORDS = 12

_MIN_QUERY_WORDS = 3

_MAX_QUERY_WORDS = 40

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)\.(?=\s|$)")

_SIGNATURE = re.compile(r"->|^[\w.]+\(")

_DOCUMENTED_NODES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_SKIPPED_FOLDERS = frozenset(
    ("__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo")
)

_TWINS_OF_COMPILED = frozenset({"_pydatetime.py", "_pydecimal.py", "_pyio.py"})
"""Python twins of compiled modules, skipped because the compiled modules document the same objects."""

_COMPILED = (
    *("_asyncio", "_bisect", "_bz2", "_codecs", "_collections", "_contextvars", "_csv", "_ctypes", "_datetime"),
    *("_decimal", "_elementtree", "_functools", "_hashlib", "_heapq", "_io", "_json", "_locale", "_lzma", "_operator"),
    *("_pickle", "_queue", "_random", "_signal", "_socket", "_sqlite3", "_sre", "_ssl", "_stat", "_struct", "_thread"),
    *("_tracemalloc", "_weakref", "_zoneinfo", "array", "atexit", "binascii", "builtins", "cmath", "errno"),
    *("faulthandler", "fcntl", "gc", "grp", "itertools", "marshal", "math", "mmap", "posix", "pwd", "pyexpat"),
    *("resource", "select", "sys", "syslog", "termios", "time", "unicodedata", "zlib"),
)
"""Compiled modules that import without side effects or warnings."""
_PUBLIC = {
    "_elementtree": "xml.etree.ElementTree",
    "_sre": "re",
    "_thread": "_thread",
    "posix": "os",
    "pyexpat": "xml.parsers.expat",
}
"""Compiled module → public name, if it is not the module's name without the underscore."""


def open_pydoc() -> FileCollection:
    """Open the documentation of the running interpreter's standard library; the first call builds it.

    Each documented object is a passage: id and title are its qualified name, the text is its docstring without the
    summary. The summary is a query in the split `test`.
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
    # Evaluation may exclude passages with the query's id, as for ArguAna.
    queries = [Query(f"summary:{name}", summary) for name, summary in summaries.items()]
    qrels = {f"summary:{name}": {name: 1} for name in summaries}
    write_beir_folder(folder, passages, queries, {SPLIT: qrels})
    # Every node builds its own copy: a fixed time gives all copies the same state.
    os.utime(folder / CORPUS, (0, 0))


def passages_and_summaries(docs: dict[str, str]) -> tuple[list[Passage], dict[str, str]]:
    """Convert docstrings by qualified name to passages, and to unique summaries for queries.

    Identical texts are stored once. Short docstrings stay whole and have no query.
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
    """Split a cleaned docstring into its summary (first sentence, or else first paragraph) and the rest."""
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
    # Signatures are not realistic queries and contain the name.
    return _MIN_QUERY_WORDS <= len(summary.split()) <= _MAX_QUERY_WORDS and not _SIGNATURE.search(summary)


def documented_objects() -> dict[str, str]:
    """Return sorted docstrings of modules, classes, functions and methods by qualified name.

    Python sources take precedence over compiled modules.
    """
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        # Warnings turned into errors would change the collection.
        warnings.simplefilter("ignore")
        for name, doc in (*_in_sources(), *_in_compiled()):
            if doc:
                found.setdefault(name, doc)
    return dict(sorted(found.items()))


def _in_sources() -> Iterator[tuple[str, str | None]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in _source_files(root):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            # Distributions may contain files that do not compile.
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        yield module, ast.get_docstring(tree)
        yield from _in_body(tree.body, module)


def _source_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file() and path.name not in _SKIPPED_FOLDERS:
            yield from _source_files(path)
        elif path.suffix == ".py" and path.name not in _TWINS_OF_COMPILED:
            yield path


def _in_body(body: Iterable[ast.AST], prefix: str) -> Iterator[tuple[str, str | None]]:
    for node in body:
        if isinstance(node, _DOCUMENTED_NODES):
            name = f"{prefix}.{node.name}"
            yield name, ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from _in_body(node.body, name)
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            # Definitions that depend on the platform.
            yield from _in_body(ast.iter_child_nodes(node), prefix)


def _in_compiled() -> Iterator[tuple[str, str | None]]:
    for compiled in _COMPILED:
        public = _PUBLIC.get(compiled, compiled.removeprefix("_"))
        try:
            module = importlib.import_module(compiled)
        except ImportError:
            continue
        yield public, _cleaned(module)
        yield from _in_module(module, public)


def _in_module(module: ModuleType, public: str) -> Iterator[tuple[str, str | None]]:
    homes = (module.__name__, public)
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) not in homes:
            continue
        if inspect.isroutine(value):
            yield f"{public}.{name}", _cleaned(value)
        elif inspect.isclass(value):
            yield f"{public}.{name}", _cleaned(value)
            yield from _in_class(value, f"{public}.{name}")


def _in_class(owner: type, prefix: str) -> Iterator[tuple[str, str | None]]:
    for name, value in sorted(vars(owner).items()):
        if inspect.isroutine(value) or inspect.isdatadescriptor(value):
            yield f"{prefix}.{name}", _cleaned(value)


def _cleaned(value: Any) -> str | None:
    doc = value.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else None

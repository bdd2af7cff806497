"""Collections of the optional library `ir_datasets`, such as `irds:beir/scifact` or `irds:msmarco-passage`.

The first call converts a collection to BEIR's layout in the cache, atomically. Later calls read that folder without the
library. Downloads stay in the library's own cache, so an interrupted conversion does not repeat them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from diffretriever.collections.base import FileCollection
from diffretriever.collections.beir import CORPUS, open_beir_folder, remove_abandoned, write_beir_folder
from diffretriever.collections.records import Passage, Qrels, Query
from diffretriever.core.files import cache_dir, file_digest, locked, whole_folder
from diffretriever.core.progress import track
from diffretriever.schemas.base import suggest

PREFIX = "irds:"

_LIBRARY = "ir_datasets"
_MSMARCO = "msmarco-passage"
_MSMARCO_SPLITS = {"train": "train", "dev": "dev/small", "dl19": "trec-dl-2019", "dl20": "trec-dl-2020"}
"""Split → name children `msmarco-passage` in the library; other splits are ignored."""
_BEIR = "beir/"
_WHOLE = "test"
_FORMAT = 1
_LANGUAGE = "language"
"""File with the language that the library states: an ISO 639-1 code."""
_DIGEST_DIGITS = 8
_REASON_CHARACTERS = 300

T = TypeVar("T")


def is_converted(source: str) -> bool:
    """Return whether the collection `irds:NAME` is in the cache."""
    return _folder(source).is_dir()


def open_irds(source: str) -> FileCollection:
    """Open a collection `irds:NAME`; the first call downloads and converts it.

    It gets the name that BEIR or MS MARCO use. Its splits are those directly children NAME, or NAME itself if it is a
    split, such as `irds:beir/scifact/test`.

    Raises:
        ValueError: the library is not installed, does not know the name, or cannot read the collection.
    """
    folder = _folder(source)
    if not is_converted(source):
        with locked(folder.parent.with_suffix(".lock")):
            if not is_converted(source):
                remove_abandoned(folder.parent)
                _convert(source, folder)
    inside = [path for path in folder.iterdir() if path.is_dir()]
    if len(inside) != 1:
        raise ValueError(f"{folder} has changed since the conversion of {source}: delete it, to convert it again")
    stated = folder / _LANGUAGE
    collection = open_beir_folder(inside[0], inside[0].name, source)
    return replace(collection, language=stated.read_text("utf-8")) if stated.is_file() else collection


def _folder(source: str) -> Path:
    name = source.removeprefix(PREFIX).replace("/", "~")
    return cache_dir() / "irds" / f"{name}-format{_FORMAT}"


def _convert(source: str, target: Path) -> None:
    if find_spec(_LIBRARY) is None:
        raise ValueError(f"{source} needs ir_datasets, which is not installed: pip install 'diffretriever[irds]'")
    library = import_module("ir_datasets")
    dataset_id = source.removeprefix(PREFIX)
    try:
        dataset = library.load(dataset_id)
    except KeyError:
        raise ValueError(f"ir_datasets knows no '{dataset_id}'.{suggest(dataset_id, library.registry)}") from None
    if not dataset.has_docs():
        raise ValueError(f"{source} has no passages in ir_datasets")
    logging.getLogger(__name__).info("converting %s to %s", source, target)
    root = library.docs_parent_id(dataset_id)
    splits = {split: library.load(name) for split, name in _splits(library, dataset_id, root).items()}
    queries = _queries(source, splits)
    qrels = {split: _qrels(source, dataset) for split, dataset in splits.items()}
    with whole_folder(target) as unfinished:
        folder = unfinished / _name(root)
        folder.mkdir()
        docs = track(_with_source(source, dataset.docs_iter), f"converting {source}", "passages")
        write_beir_folder(folder, map(_passage, docs), queries, qrels)
        if re.fullmatch("[a-z]{2}", language := dataset.docs_lang() or ""):
            (unfinished / _LANGUAGE).write_text(language, "utf-8")
        # A time derived from the contents gives conversions on all nodes the same state.
        seconds = int(file_digest(folder / CORPUS)[:_DIGEST_DIGITS], 16)
        os.utime(folder / CORPUS, (seconds, seconds))


def _splits(library: Any, dataset_id: str, root: str) -> dict[str, str]:
    """Return split → name in the library; judgements of the whole collection are the split `test`."""
    if dataset_id == _MSMARCO:
        return {split: f"{_MSMARCO}/{name}" for split, name in _MSMARCO_SPLITS.items()}
    if dataset_id != root:
        split = dataset_id.removeprefix(f"{root}/").replace("/", ".")
        return {split: dataset_id} if _is_judged(library, dataset_id) else {}
    children = sorted(name for name in library.registry if name.rpartition("/")[0] == root)
    judged = {
        name.rpartition("/")[2]: name
        for name in children
        if _is_judged(library, name) and library.docs_parent_id(name) == root
    }
    return {_WHOLE: root, **judged} if _is_judged(library, root) else judged


def _is_judged(library: Any, name: str) -> bool:
    dataset = library.load(name)
    return bool(dataset.has_queries() and dataset.has_qrels())


def _name(root: str) -> str:
    """Return the name that BEIR and MS MARCO use."""
    return "msmarco" if root == _MSMARCO else root.removeprefix(_BEIR).replace("/", "-")


def _passage(doc: Any) -> Passage:
    text = getattr(doc, "text", None)
    if text is None:
        return Passage(doc.doc_id, "", doc.default_text())
    return Passage(doc.doc_id, getattr(doc, "title", None) or "", text)


def _queries(source: str, splits: dict[str, Any]) -> list[Query]:
    texts: dict[str, str] = {}
    for split, dataset in splits.items():
        for query in _with_source(source, dataset.queries_iter):
            text = getattr(query, "text", None) or query.default_text()
            if texts.setdefault(query.query_id, text) != text:
                raise ValueError(
                    f"{source}: query '{query.query_id}' of split {split} has another text in another split: give one "
                    f"split by its own name, such as {source}/{split}"
                )
    return [Query(query_id, text) for query_id, text in texts.items()]


def _qrels(source: str, dataset: Any) -> Qrels:
    qrels: Qrels = {}
    for judgement in _with_source(source, dataset.qrels_iter):
        qrels.setdefault(judgement.query_id, {})[judgement.doc_id] = int(judgement.relevance)
    return qrels


def _with_source(source: str, read: Callable[[], Iterable[T]]) -> Iterator[T]:
    """Yield the items of `read`; convert the library's errors, mostly of downloads, to ValueError."""
    try:
        yield from read()
    except Exception as error:
        reason = " ".join(str(error).split())[:_REASON_CHARACTERS] or type(error).__name__
        raise ValueError(f"{source}: ir_datasets cannot read it: {reason}") from error

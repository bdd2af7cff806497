"""BEIR's layout: `corpus.jsonl`, `queries.jsonl`, `qrels/{split}.tsv`, each may be `.gz`; folder or zip."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from diffretriever.collections.archive import unpack
from diffretriever.collections.base import Passage, Qrels, Query
from diffretriever.collections.files import FileCollection, Split
from diffretriever.collections.lines import find_file

CORPUS = "corpus.jsonl"
QUERIES = "queries.jsonl"


def open_beir_folder(folder: Path, name: str, shown: str) -> FileCollection:
    """Open a folder; without `queries.jsonl` or `qrels/` it has no splits. Its files are shown under `shown`.

    Raises:
        ValueError: There is no corpus.
    """
    corpus = find_file(folder, CORPUS, shown)
    if corpus is None:
        raise ValueError(f"{shown}: no {CORPUS} or {CORPUS}.gz there")
    return FileCollection(name, corpus, _splits(folder, shown))


def open_beir_zip(path: Path, shown: str) -> FileCollection:
    """Open a zip that holds one BEIR folder, at its top or below; unpacked once to the cache.

    Raises:
        ValueError: It is not a usable zip, or it holds no BEIR folder or several.
    """
    root = unpack(path)
    folders = sorted({file.parent for file in root.rglob(f"{CORPUS}*") if file.name in (CORPUS, f"{CORPUS}.gz")})
    inside = [folder.relative_to(root).as_posix() for folder in folders]
    if not folders:
        raise ValueError(f"{shown}: the zip has no {CORPUS}; this is not a BEIR collection")
    if len(folders) > 1:
        raise ValueError(f"{shown}: the zip has {len(folders)} collections ({', '.join(inside)}): unpack it, open one")
    return open_beir_folder(folders[0], path.stem, f"{shown}/{inside[0]}".removesuffix("/."))


def write_beir_folder(
    folder: Path, passages: Iterable[Passage], queries: Iterable[Query], qrels: Mapping[str, Qrels]
) -> None:
    """Write a collection into an existing folder; `qrels` by split."""
    _write_lines(folder / CORPUS, ({"_id": p.id, "title": p.title, "text": p.text} for p in passages))
    _write_lines(folder / QUERIES, ({"_id": query.id, "text": query.text} for query in queries))
    (folder / "qrels").mkdir()
    for split, judgements in qrels.items():
        with (folder / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as stream:
            stream.write("query-id\tcorpus-id\tscore\n")
            for query_id, judged in judgements.items():
                stream.writelines(f"{query_id}\t{passage_id}\t{rel}\n" for passage_id, rel in judged.items())


def _splits(folder: Path, shown: str) -> dict[str, Split]:
    queries = find_file(folder, QUERIES, shown)
    if queries is None:
        return {}
    splits = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        name = path.name.removesuffix(".gz").removesuffix(".tsv")
        qrels = find_file(folder / "qrels", f"{name}.tsv", f"{shown}/qrels")
        if qrels is not None and not name.startswith("."):
            splits[name] = Split(queries, qrels)
    return splits


def _write_lines(path: Path, objects: Iterable[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in objects)

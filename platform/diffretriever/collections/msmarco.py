"""MS MARCO's layout: `collection.tsv`, `queries.{split}.tsv`, `qrels.{split}.tsv` (TREC), or `.gz`."""

from __future__ import annotations

from pathlib import Path

from diffretriever.collections.files import FileCollection, Split, splits_in
from diffretriever.collections.records import find_file
from schemas.places import StorePath

CORPUS = "collection.tsv"


def open_msmarco_folder(folder: Path | StorePath, name: str, shown: str) -> FileCollection:
    """Open a folder; a split is where both `queries.{split}.tsv` and `qrels.{split}.tsv` are.

    Raises:
        ValueError: There is no `collection.tsv`.
    """
    corpus = find_file(folder, CORPUS, shown)
    if corpus is None:
        raise ValueError(f"{shown}: no {CORPUS} or {CORPUS}.gz there")
    splits = {}
    for split in splits_in(folder, "qrels."):
        queries = find_file(folder, f"queries.{split}.tsv", shown)
        qrels = find_file(folder, f"qrels.{split}.tsv", shown)
        if queries is not None and qrels is not None:
            splits[split] = Split(queries, qrels)
    return FileCollection(name, corpus, splits)

"""Opens MS MARCO passages as distributed: one folder with Microsoft's and TREC's files under their original names.

`collection.tsv`; `queries.train.tsv` and `qrels.train.tsv`, `queries.dev.small.tsv` and `qrels.dev.small.tsv`; TREC's
`msmarco-test2019-queries.tsv` and `2019qrels-pass.txt`, and those of 2020. Each may be `.gz`. Further queries and
judgements are read by the same names, `queries.{split}.tsv` and `qrels.{split}.tsv`.
"""

from __future__ import annotations

from pathlib import Path

from diffretriever.collections.base import FileCollection, Split, splits_in
from diffretriever.collections.records import find_file
from diffretriever.core.files import is_file
from diffretriever.schemas.locations import StorePath

CORPUS = "collection.tsv"
ARCHIVES = ("collection.tar.gz", "collectionandqueries.tar.gz")
"""Microsoft's archives of the collection."""

_WHOLE_DEV = "dev.full"
"""Name of the split of `queries.dev.tsv` if the folder has `queries.dev.small.tsv`, the usual dev set."""

_PUBLISHED = {
    "train": ("queries.train.tsv", "qrels.train.tsv"),
    "dev": ("queries.dev.small.tsv", "qrels.dev.small.tsv"),
    "dl19": ("msmarco-test2019-queries.tsv", "2019qrels-pass.txt"),
    "dl20": ("msmarco-test2020-queries.tsv", "2020qrels-pass.txt"),
}
"""Split → names of the downloaded queries and judgements."""


def open_msmarco_folder(folder: Path | StorePath, name: str, shown: str) -> FileCollection:
    """Open a folder; its splits are those with both queries and judgements.

    Raises:
        ValueError: `collection.tsv` is missing; if an archive is there, the message shows how to unpack it.
    """
    corpus = find_file(folder, CORPUS, shown)
    if corpus is None:
        raise ValueError(f"{shown}: no {CORPUS} or {CORPUS}.gz there{_how_to_unpack(folder, shown)}")
    named = {split: (f"queries.{split}.tsv", f"qrels.{split}.tsv") for split in splits_in(folder, "qrels.")}
    if named.pop("dev.small", None) and "dev" in named:
        named[_WHOLE_DEV] = named.pop("dev")
    splits, incomplete = dict[str, Split](), dict[str, str]()
    for split, names in [*_PUBLISHED.items(), *named.items()]:
        queries, qrels = (find_file(folder, file, shown) for file in names)
        if queries is not None and qrels is not None:
            splits.setdefault(split, Split(queries, qrels))
            continue
        absent = [file for file, path in zip(names, (queries, qrels), strict=True) if path is None]
        incomplete.setdefault(split, f"{shown} lacks {' and '.join(absent)} (or .gz)")
    return FileCollection(name, corpus, splits, incomplete)


def _how_to_unpack(folder: Path | StorePath, shown: str) -> str:
    for archive in ARCHIVES:
        if is_file(folder / archive):
            return f", but {archive} is: unpack it first (tar -xzf {shown}/{archive} -C {shown})"
    return ""

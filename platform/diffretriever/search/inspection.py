"""The report of an index: its table, its history, its derived files, and the outcome of its check."""

from __future__ import annotations

from functools import partial

from diffretriever.index.damage import readable
from diffretriever.index.derived import unless_damaged
from diffretriever.index.history import column_bytes, history
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import Kind
from diffretriever.schemas.index import IndexContents
from diffretriever.schemas.inspect import FilesContents, IndexReport
from diffretriever.search.accelerate import kinds_of, sizes_of
from diffretriever.search.dense.candidates import read_settings
from diffretriever.search.verify import verify


def inspect(index: PassageIndex, *, check: bool) -> IndexReport:
    """Describe an index; with `check` all of it is read and checked.

    Raises:
        ValueError: Lance cannot read the table; the message names damaged files.
    """
    with readable(index.uri, index.fragments):
        return _report(index, index.contents(), check=check)


def _report(index: PassageIndex, contents: IndexContents, *, check: bool) -> IndexReport:
    codes: Kind = "packed" if "packed" in kinds_of(index) else "codes"
    return IndexReport(
        index=index.uri,
        fingerprint=index.manifest.fingerprint,
        contents=contents,
        columns=column_bytes(index),
        codes=None if index.manifest.hidden_size is None else _files(index, codes),
        postings=_files(index, "postings") if "postings" in kinds_of(index) else None,
        candidates=unless_damaged(partial(read_settings, index)),
        versions=history(index),
        verification=verify(index, contents) if check else None,
        manifest=index.manifest,
    )


def _files(index: PassageIndex, kind: Kind) -> FilesContents:
    sizes = list(zip(index.fragments(), sizes_of(index, kind), strict=True))
    missing = [fragment for fragment, size in sizes if size is None]
    return FilesContents(
        fragments=len(sizes) - len(missing),
        missing_fragments=len(missing),
        missing_rows=sum(fragment.count_rows() for fragment in missing),
        bytes=sum(size or 0 for _, size in sizes),
    )

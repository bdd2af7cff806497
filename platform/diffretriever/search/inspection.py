"""All that can be told of an index: its table, its history, what search keeps beside it, and whether it is sound."""

from __future__ import annotations

from functools import partial
from typing import Any

from diffretriever.index.history import column_bytes, history
from diffretriever.index.table import PassageIndex
from diffretriever.search.accelerate import kinds_of, sizes_of
from diffretriever.search.dense.candidates import read_settings
from diffretriever.search.dense.codes import CODES
from diffretriever.search.dense.packed import PACKED
from diffretriever.search.sparse.postings import POSTINGS
from diffretriever.search.verify import verify, verify_postings
from schemas.accelerate import Kind
from schemas.index import IndexContents
from schemas.inspect import CodesContents, IndexReport, PostingsContents, Verification


def inspect(index: PassageIndex, *, check: bool) -> IndexReport:
    """Describe an index; with `check` all of it is read and checked."""
    contents = index.contents()
    return IndexReport(
        index=index.uri,
        fingerprint=index.manifest.fingerprint,
        contents=contents,
        columns=column_bytes(index),
        codes=None if index.manifest.hidden_size is None else _codes_contents(index),
        postings=_postings_contents(index) if "postings" in kinds_of(index) else None,
        candidates=read_settings(index),
        versions=history(index),
        verification=_verification(index, contents) if check else None,
        manifest=index.manifest,
    )


def _verification(index: PassageIndex, contents: IndexContents) -> Verification:
    found = verify(index, contents, partial(CODES.open_of, index), partial(PACKED.open_of, index))
    postings, problems = verify_postings(index, partial(POSTINGS.open_of, index))
    return found.model_copy(update={"postings": postings, "problems": [*found.problems, *problems]})


def _codes_contents(index: PassageIndex) -> CodesContents:
    having, lacking, size = _files(index, "packed" if "packed" in kinds_of(index) else "codes")
    rows = sum(fragment.count_rows() for fragment in lacking)
    return CodesContents(coded_fragments=len(having), uncoded_fragments=len(lacking), uncoded_rows=rows, bytes=size)


def _postings_contents(index: PassageIndex) -> PostingsContents:
    having, lacking, size = _files(index, "postings")
    return PostingsContents(
        inverted_fragments=len(having),
        uninverted_fragments=len(lacking),
        uninverted_rows=sum(fragment.count_rows() for fragment in lacking),
        bytes=size,
    )


def _files(index: PassageIndex, kind: Kind) -> tuple[list[Any], list[Any], int]:
    """Return the fragments that have files of a kind, those that have none, and the bytes of all these files."""
    sizes = list(zip(index.fragments(), sizes_of(index, kind), strict=True))
    having = [fragment for fragment, size in sizes if size is not None]
    return having, [fragment for fragment, size in sizes if size is None], sum(size or 0 for _, size in sizes)

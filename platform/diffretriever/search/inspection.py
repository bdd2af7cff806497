"""All that can be told of an index: its table, its history, what search keeps beside it, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from diffretriever.index.damage import readable
from diffretriever.index.derived import DamagedError, unless_damaged
from diffretriever.index.history import column_bytes, history
from diffretriever.index.table import PassageIndex, table_uri
from diffretriever.schemas.accelerate import Kind
from diffretriever.schemas.index import IndexContents
from diffretriever.schemas.inspect import CodesContents, IndexReport, PostingsContents, Problem, Verification
from diffretriever.search.accelerate import kinds_of, sizes_of
from diffretriever.search.bm25 import bm25_folder, open_bm25
from diffretriever.search.dense.candidates import read_settings
from diffretriever.search.dense.codes import CODES
from diffretriever.search.dense.compressed import PACKED
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.sparse.postings import POSTINGS
from diffretriever.search.verify import Problems, verify, verify_postings

_BM25 = "the BM25 index that is kept is damaged"


def inspect(index: PassageIndex, *, check: bool) -> IndexReport:
    """Describe an index; with `check` all of it is read and checked.

    Raises:
        ValueError: Lance cannot read the table; the message names damaged files.
    """
    with readable(index.uri, table_uri(index.uri), index.fragments):
        return _report(index, index.contents(), check=check)


def _report(index: PassageIndex, contents: IndexContents, *, check: bool) -> IndexReport:
    return IndexReport(
        index=index.uri,
        fingerprint=index.manifest.fingerprint,
        contents=contents,
        columns=column_bytes(index),
        codes=None if index.manifest.hidden_size is None else _codes_contents(index),
        postings=_postings_contents(index) if "postings" in kinds_of(index) else None,
        candidates=unless_damaged(partial(read_settings, index)),
        versions=history(index),
        verification=_verification(index, contents) if check else None,
        manifest=index.manifest,
    )


def _verification(index: PassageIndex, contents: IndexContents) -> Verification:
    found = verify(index, contents, partial(CODES.checked, index), partial(PACKED.checked, index))
    postings, problems = verify_postings(index, partial(POSTINGS.checked, index))
    return found.model_copy(
        update={
            "postings": postings,
            "problems": [*found.problems, *problems, *_other_problems(index)],
        }
    )


def _other_problems(index: PassageIndex) -> list[Problem]:
    """Return what is wrong with what is kept of an index but for the files of its fragments."""
    problems = Problems()
    checks: list[tuple[str, Callable[[], object]]] = [
        (_BM25, bm25_folder(index).check),
        (_BM25, partial(open_bm25, index)),
    ]
    if "codes" in kinds_of(index):
        checks.append(("the settings of the candidate index are damaged", partial(read_settings, index)))
        checks += [
            ("the sketches of a fragment are damaged", partial(CandidateIndex.check, CODES.folder_of(index, fragment)))
            for fragment in index.fragments()
        ]
    for kind, check in checks:
        try:
            check()
        except DamagedError as error:
            problems.add(kind, [str(error)])
    return problems.found()


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

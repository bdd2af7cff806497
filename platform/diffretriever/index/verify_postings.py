"""The check of the postings beside a table: their files' checksums, and each posting against the stored impacts.

Memory is bounded by a batch of passages and 8 bytes for each passage of a fragment.

Legend: P passages of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from diffretriever.encoders.representations import read_impacts
from diffretriever.index.fragment_postings import FragmentPostings
from diffretriever.index.live_rows import rows_written
from diffretriever.index.row_checks import Found
from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.index.verify import Problems
from diffretriever.kernels.inversion import digest_impacts
from schemas.inspect import Problem

PostingsOf: TypeAlias = Callable[[Any], FragmentPostings | None]
"""Opens the postings of a fragment; None where it has none."""

_COLUMNS = ("id", "impact_ids", "impact_weights")
_BATCH_ROWS = 8192


def verify_postings(index: PassageIndex, postings_of: PostingsOf) -> tuple[int, list[Problem]]:
    """Return how many impacts of an index version were compared with their postings, and what is wrong with these."""
    problems = Problems()
    compared = 0
    for fragment in index.fragments():
        postings = _open(fragment, postings_of, problems)
        if postings is None:
            continue
        digests = postings.segment.passage_digests()
        for batch in index.fragment_batches(fragment, _COLUMNS, _BATCH_ROWS):
            ids = batch.column("id").to_pylist()
            compared += len(batch.column("impact_ids").flatten())
            for kind, wrong_P in _batch_problems(batch, ids, postings, digests):
                problems.add(kind, [ids[row] for row in np.flatnonzero(wrong_P)])
    return compared, problems.found()


def _open(fragment: Any, postings_of: PostingsOf, problems: Problems) -> FragmentPostings | None:
    try:
        postings = postings_of(fragment)
        if postings is not None:
            postings.segment.verify()
    except (OSError, ValueError, KeyError):
        problems.add("the postings of a fragment are damaged", [fragment_key(fragment)])
        return None
    return postings


def _batch_problems(batch: pa.RecordBatch, ids: list[str], postings: FragmentPostings, digests: np.ndarray) -> Found:
    """Compare passages with the postings of their fragment: uint64 digests, one for each passage in those."""
    rows_P = rows_written(batch.column("_rowaddr").to_numpy())
    places_P = np.minimum(np.searchsorted(postings.rows_P, rows_P), max(0, len(postings) - 1))
    known_P = postings.rows_P[places_P] == rows_P if len(postings) else np.zeros(len(rows_P), bool)
    yield "the fragment's postings leave the passage out", ~known_P
    kept_ids = postings.ids_of(places_P[known_P])
    same_P = known_P.copy()
    same_P[known_P] = [kept == ids[row] for kept, row in zip(kept_ids, np.flatnonzero(known_P), strict=True)]
    yield "the fragment's postings have another id for the passage", known_P & ~same_P

    term_ids, weights, offsets = read_impacts(batch)
    if len(term_ids) != len(weights):
        yield "postings and impacts differ", known_P
        return
    expected_P = np.zeros(len(rows_P), np.uint64)
    digest_impacts(term_ids, weights.view(np.uint32), offsets, expected_P)
    differs_P = known_P.copy()
    differs_P[known_P] = digests[places_P[known_P]] != expected_P[known_P]
    yield "postings and impacts differ", differs_P

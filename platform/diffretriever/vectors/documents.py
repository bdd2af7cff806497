"""Scores of documents from the hits of their chunks: the best chunk (MaxP), the first (FirstP), or a mean of the best.

Source: Dai and Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling" (SIGIR 2019).

Legend: Q queries, P passages, D documents, F hits, G pairs of a query and a document that it hits, K ranked pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa

from diffretriever.vectors.hits import Hits, Passages
from diffretriever.vectors.representations import offsets_of

_ROUNDING = 1e-9
"""Relative margin over the rounding of a mean."""


@dataclass(frozen=True, eq=False)
class Documents:
    """Maps the passages of an index to their documents.

    Attributes:
        ids: D document ids, ascending.
        numbers_P: int32 [P], document of each passage.
        counts_D: int64 [D], chunks of each document among the searched passages.
    """

    ids: Passages
    numbers_P: np.ndarray
    counts_D: np.ndarray

    @classmethod
    def of(cls, ids_P: pa.LargeStringArray) -> Self:
        """Group passages by their documents' ids."""
        ids, numbers_P = Passages.numbered(ids_P)
        return cls(ids, numbers_P, np.bincount(numbers_P, minlength=len(ids)))

    def among(self, numbers_C: np.ndarray) -> Self:
        """Count only the chunks with these passage numbers, int32 [C]."""
        return replace(self, counts_D=np.bincount(self.numbers_P[numbers_C], minlength=len(self.ids)))


@dataclass(frozen=True, eq=False)
class DocumentHits(Hits):
    """Ranked documents: `passages` are documents, and `rows` those of each document's best chunk."""

    rows_F: np.ndarray

    def rows(self) -> np.ndarray:
        """Return the table row of the best chunk of every hit, int64 [F]."""
        return self.rows_F

    @classmethod
    def joined(cls, parts: Sequence[DocumentHits]) -> DocumentHits:
        """Append the queries of one or more parts that rank the same documents."""
        return cls(
            parts[0].passages,
            offsets_of(np.concatenate([part.counts_Q for part in parts])),
            np.concatenate([part.numbers_F for part in parts]),
            np.concatenate([part.scores_F for part in parts]),
            np.concatenate([part.rows_F for part in parts]),
        )


def rank_documents(hits: Hits, documents: Documents, *, averaged: int, k: int, depth: int) -> DocumentHits | None:
    """Return each query's best `k` documents, score descending, then id ascending; None if chunks below could matter.

    A document scores the mean of its `averaged` best chunks, or of all if it has fewer. A chunk that is missing from a
    complete list counts 0, as sparse and BM25 scores without a shared term do.

    `hits` are the best `depth` passages of each query; fewer are all. Passage numbers are those of `documents`.
    """
    queries_F, owners_F = hits.queries(), documents.numbers_P[hits.numbers_F]
    pairs_F = queries_F * len(documents.ids) + owners_F
    # Stable, so the chunks of a document stay best first.
    order = np.argsort(pairs_F, kind="stable")
    is_best_F = np.diff(pairs_F[order], prepend=-1) > 0
    best_G = order[is_best_F]
    groups_F, firsts_G = np.cumsum(is_best_F) - 1, np.flatnonzero(is_best_F)
    counted_F = np.arange(len(order)) - firsts_G[groups_F] < averaged
    sums_G = np.bincount(groups_F[counted_F], hits.scores_F[order][counted_F], minlength=len(best_G))
    seen_G = np.bincount(groups_F[counted_F], minlength=len(best_G))
    queries_G, owners_G = queries_F[best_G], owners_F[best_G]
    sizes_G = np.minimum(documents.counts_D[owners_G], averaged)
    # A chunk below the list scores at most its last hit, or 0 if it is missing from a sum of lists.
    is_cut_Q, most_Q = hits.counts_Q == depth, np.zeros(len(hits))
    most_Q[is_cut_Q] = np.maximum(hits.scores_F[hits.offsets[1:][is_cut_Q] - 1], 0.0)
    bounds_G = (sums_G + (sizes_G - seen_G) * most_Q[queries_G]) / sizes_G
    is_open_G = is_cut_Q[queries_G] & (seen_G < sizes_G)
    np.maximum.at(most_Q, queries_G[is_open_G], bounds_G[is_open_G])
    certain_G = ~is_open_G & (bounds_G > (most_Q * (1 + _ROUNDING))[queries_G])
    if (np.bincount(queries_G[certain_G], minlength=len(hits)) < k)[is_cut_Q].any():
        return None
    ranking = np.lexsort((owners_G, -bounds_G, queries_G))
    ranks = np.arange(len(ranking)) - np.searchsorted(queries_G, queries_G)
    top_K = ranking[ranks < k]
    offsets = np.searchsorted(queries_G[top_K], np.arange(len(hits) + 1))
    assert hits.passages.rows_P is not None, "the hits come from an index"
    rows_K = hits.passages.rows_P[hits.numbers_F[best_G[top_K]]]
    return DocumentHits(documents.ids, offsets, owners_G[top_K], bounds_G[top_K], rows_K)

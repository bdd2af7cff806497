"""The dense score of multi-vector representations (Eq. 2 of arXiv 2605.07210), for training and for search.

Searches score passages approximately (by a matrix product, 8-bit codes or a candidate index), select the top-k
candidates by bound with `can_be_best`, and score these by `exact_scores`. So all searches return the same bits for the
same pair, and equal passages tie exactly. `contenders` and `add_exact` do both steps for a batch of passages.

A score from 8-bit codes (`Codes`, `CodedQueries`) differs from the fp32 score by at most the rounding errors of the
passage's and the query's vectors, by the Cauchy-Schwarz inequality. So the bound applies to every passage.

Legend: Q queries, P passages, M vectors of all queries together, N vectors of all passages together, H hidden size,
B a block of query vectors, C chosen passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from diffretriever.vectors import kernels
from diffretriever.vectors.hits import TopK, kth_largest
from diffretriever.vectors.kernels import reduce_products, scan_of
from diffretriever.vectors.representations import runs

Reduction: TypeAlias = Literal["mean", "sum-floored"]
ScoreDtype: TypeAlias = Literal["float32", "bfloat16-legacy"]

FP32_ROUNDING = 2e-5
"""Largest difference of an fp32 inner product between summation orders, relative to the vectors' lengths."""

_BLOCK_CELLS = 1 << 26
"""Similarities in memory at once: 256 MiB of fp32 for any number of queries."""

_INT8, _INT32 = 2**7 - 1, 2**31 - 1
LIMB = 2 * _INT8
"""A 16-bit code of a query is `LIMB * high + low`, both of 8 bits: GPUs multiply these."""
_INT16 = LIMB * _INT8 + _INT8 - 1
PRODUCT_VECTORS = 8
"""Query vectors above which one integer matrix product is faster than one kernel pass per query."""
_PRODUCT_ROWS = 8192
"""Vectors of passages in one integer matrix product."""


def maxsim(
    query_vectors_MH: torch.Tensor,
    query_offsets: np.ndarray,
    passage_vectors_NH: torch.Tensor,
    passage_offsets: np.ndarray,
    *,
    reduction: Reduction = "mean",
    score_dtype: ScoreDtype = "float32",
) -> torch.Tensor:
    """Return the MaxSim score of every query and passage (Eq. 2 of arXiv 2605.07210), fp32 [Q, P].

    A query without vectors scores 0, a passage without vectors -inf. Differentiable in both sides.

    Args:
        query_vectors_MH: [M, H], any floating dtype; query i has rows offsets[i] to offsets[i + 1].
        query_offsets: int64 [Q + 1], on the host.
        passage_vectors_NH: [N, H], any floating dtype, on the same device.
        passage_offsets: int64 [P + 1], on the host.
        reduction: `mean` is the paper's: the mean over query vectors of the largest inner product. `sum-floored` is the
            authors' code: the sum of these maxima, each at least 0.
        score_dtype: `float32` casts both sides before the product. `bfloat16-legacy` rounds like the authors' code,
            which causes ties; only for comparisons with it.

    Raises:
        ValueError: the two sides have different hidden sizes.
    """
    if query_vectors_MH.shape[1] != passage_vectors_NH.shape[1]:
        sizes = f"{query_vectors_MH.shape[1]} and {passage_vectors_NH.shape[1]}"
        raise ValueError(f"queries and passages have vectors of {sizes} dimensions: encode both with one retriever")
    query_counts = _counts(query_offsets, len(query_vectors_MH))
    passage_counts = _counts(passage_offsets, len(passage_vectors_NH))
    dtype = torch.float32 if score_dtype == "float32" else torch.bfloat16
    query_MH, passage_NH = query_vectors_MH.to(dtype), passage_vectors_NH.to(dtype)
    # Autocast would silently redo the product in half precision while training.
    with torch.autocast(query_MH.device.type, enabled=False):
        best_PM = _best_per_passage(query_MH, passage_NH, passage_counts)
        if reduction == "sum-floored":
            best_PM = best_PM.clamp(min=0)
        scores_PQ = sum_per_query(best_PM.float(), query_counts)
    if reduction == "mean":
        scores_PQ = scores_PQ / query_counts.clamp(min=1).to(scores_PQ.device)
    empty_P1 = (passage_counts == 0).to(scores_PQ.device)[:, None]
    return scores_PQ.masked_fill(empty_P1, -torch.inf).T.contiguous()


def _counts(offsets: np.ndarray, n_vectors: int) -> torch.Tensor:
    counts = np.diff(offsets)
    assert offsets[0] == 0, "offsets start at 0"
    assert offsets[-1] == n_vectors, "offsets end at the number of vectors"
    assert (counts >= 0).all(), "offsets never decrease"
    return torch.from_numpy(counts)


def _best_per_passage(query_MH: torch.Tensor, passage_NH: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return [P, M]: each query vector's largest inner product with a vector of each passage."""
    block = max(1, _BLOCK_CELLS // max(1, len(passage_NH)))
    # Passages are rows, since a maximum over rows is several times faster than one over columns.
    blocks_PB = [max_per_passage(passage_NH @ query_BH.T, counts) for query_BH in query_MH.split(block)]
    return torch.cat(blocks_PB, dim=1)


def max_per_passage(similarities_NB: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return [P, B]: each query vector's largest similarity with a vector of each passage; -inf without vectors.

    `counts`, int64 [P] on the host, are the vectors of each passage, one passage after the other.
    """
    n_passages, width = len(counts), similarities_NB.shape[1]
    first = int(counts[0]) if n_passages else 0
    if first > 0 and bool((counts == first).all()):
        return similarities_NB.view(n_passages, first, width).amax(dim=1)
    if len(similarities_NB) == 0:
        return similarities_NB.new_full((n_passages, width), -torch.inf)
    lengths = counts.to(similarities_NB.device)
    return torch.segment_reduce(similarities_NB.contiguous(), "max", lengths=lengths, axis=0)


def sum_per_query(best_PM: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return [P, Q]: sums of each query's columns; `counts` (int64 [Q], on the host) are their numbers."""
    n_passages, n_queries = len(best_PM), len(counts)
    first = int(counts[0]) if n_queries else 0
    if first > 0 and bool((counts == first).all()):
        return best_PM.view(n_passages, n_queries, first).sum(dim=2)
    owner_M = torch.repeat_interleave(torch.arange(n_queries), counts).to(best_PM.device)
    return best_PM.new_zeros(n_passages, n_queries).index_add(1, owner_M, best_PM)


class Vectors(NamedTuple):
    """The vectors of several texts."""

    vectors_MH: np.ndarray
    """[M, H], float32, or float16 as they are stored."""
    offsets: np.ndarray
    """int64 [texts + 1]; text i owns rows offsets[i] to offsets[i + 1]."""

    def of(self, text: int) -> np.ndarray:
        """Return the vectors of one text."""
        return self.vectors_MH[self.offsets[text] : self.offsets[text + 1]]


def longest(vectors_NH: np.ndarray) -> float:
    """Return the largest Euclidean norm of float32 [N, H]; 0 without vectors."""
    # `np.linalg.norm` would copy the squares, which costs a tenth of a scan's time.
    return float(np.sqrt(np.einsum("nh,nh->n", vectors_NH, vectors_NH).max(initial=0)))


def contenders(queries: Vectors, scores_QP: np.ndarray, relative_error: float, best: TopK) -> list[np.ndarray]:
    """Return each query's top-k candidates in a batch by upper bound, int64 [C] ascending.

    `scores_QP` are approximate mean MaxSim; -inf excludes a passage. `relative_error` is the largest error of a score,
    relative to the query's longest vector. `best` contains the previous batches.
    """
    return [
        can_be_best(scores_P, relative_error * longest(queries.of(query)), best.k, threshold)
        for query, (scores_P, threshold) in enumerate(zip(scores_QP, best.thresholds_Q, strict=True))
    ]


def add_exact(
    queries: Vectors, passages: Vectors, numbers_P: np.ndarray, chosen: Sequence[np.ndarray], best: TopK
) -> None:
    """Score each query's candidates exactly and add them to `best`.

    `passages` are the stored vectors, `numbers_P` (int32) their numbers, and `chosen` the result of `contenders`.
    """
    for query, chosen_C in enumerate(chosen):
        if len(chosen_C):
            scores_C = exact_scores(queries.of(query), *passages, chosen_C)
            best.add_for(query, scores_C, numbers_P[chosen_C])


def can_be_best(scores_P: np.ndarray, slack_P: np.ndarray | float, k: int, floor: float = -np.inf) -> np.ndarray:
    """Return the passages whose upper bound reaches the top-k threshold, int64 [C] ascending.

    `scores_P` (floats) are approximate, with an error of at most `slack_P`; -inf excludes a passage. `floor` is the
    minimum of the threshold.
    """
    upper_P = scores_P + slack_P
    threshold = floor
    if len(scores_P) > k:
        lower_P = scores_P - slack_P
        threshold = max(floor, kth_largest(lower_P, k))
    return np.flatnonzero((upper_P >= threshold) & (scores_P > -np.inf))


class Shortlist(NamedTuple):
    """A query's top-k candidates by upper bound."""

    numbers_C: np.ndarray
    """int64 [C], ascending."""
    most_C: np.ndarray
    """float [C], upper bounds of their scores."""


def exact_scores(query_MH: np.ndarray, vectors_NH: np.ndarray, offsets: np.ndarray, chosen_C: np.ndarray) -> np.ndarray:
    """Return float32 [C]: the mean MaxSim of one query with chosen passages (paper Eq. 2).

    Args:
        query_MH: float32 [M, H], at least one vector.
        vectors_NH: [N, H], float16 as stored, or float32, which can change the last bits of scores.
        offsets: int64 [P + 1]; passage i has rows offsets[i] to offsets[i + 1]; without rows it scores -inf.
        chosen_C: int64 [C].
    """
    scores_C = np.empty(len(chosen_C), np.float32)
    numbers_NH = vectors_NH.view(np.uint16) if vectors_NH.dtype == np.float16 else vectors_NH
    kernels.exact(numbers_NH, offsets, chosen_C, query_MH, scores_C)
    return scores_C


@dataclass(frozen=True, slots=True)
class Codes:
    """Quantised vectors (8-bit codes).

    Attributes:
        codes_NH: int8 [N, H].
        scales_N: float32 [N], value of a step of each vector's codes.
        offsets: int64 [P + 1]; passage i owns vectors offsets[i] to offsets[i + 1].
    """

    codes_NH: np.ndarray
    scales_N: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def decoded(self, rows: np.ndarray) -> np.ndarray:
        """Return the decoded vectors of rows (int64), float32."""
        vectors: np.ndarray = self.codes_NH[rows].astype(np.float32) * self.scales_N[rows][:, None]
        return vectors


class CodedQueries:
    """Queries quantised for scoring against codes."""

    def __init__(self, vectors_MH: np.ndarray, offsets: np.ndarray, bits: Literal[8, 16] = 16) -> None:
        """Quantise float16 or float32 [M, H]; query i has rows offsets[i] to offsets[i + 1], at least one.

        16-bit codes are for the kernels and give tighter bounds; 8-bit codes are for matrix products.
        """
        self.vectors_MH = np.asarray(vectors_MH, np.float32)
        self.offsets = offsets
        self.bits = bits
        largest_M = np.abs(self.vectors_MH).max(axis=1, initial=0)
        norms_M = np.linalg.norm(self.vectors_MH, axis=1)
        # Products with any row of codes must fit 32 bits.
        longest = _INT32 / (_INT8 * np.sqrt(self.vectors_MH.shape[1])) - np.sqrt(self.vectors_MH.shape[1])
        limit = _INT16 if bits == 16 else _INT8
        steps_M = np.minimum(limit / np.maximum(largest_M, 1e-30), longest / np.maximum(norms_M, 1e-30))
        self.codes_MH = np.rint(self.vectors_MH * steps_M[:, None]).astype(np.int16)
        self.scales_M = (1 / steps_M).astype(np.float32)
        errors_M = np.linalg.norm(self.vectors_MH - self.codes_MH * self.scales_M[:, None], axis=1)
        counts_Q = np.diff(offsets)
        # Means over a query's vectors: norms, and bounds of the rounding error of a product.
        self.norms_Q = np.add.reduceat(norms_M, offsets[:-1]) / counts_Q
        self.errors_Q = np.add.reduceat(errors_M, offsets[:-1]) / counts_Q + FP32_ROUNDING * self.norms_Q

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def scores(self, passages: Codes) -> np.ndarray:
        """Return float32 [Q, P]: approximate mean MaxSim of every query with every passage; -inf without vectors."""
        if self.bits == 16:
            every_P = np.arange(len(passages))
            return np.stack([self.chosen_scores(query, passages, every_P) for query in range(len(self))])
        # A transposed array can have strides that torch 2.13 misreads in this product.
        query_HM = torch.empty(self.codes_MH.shape[::-1], dtype=torch.int8).copy_(torch.from_numpy(self.codes_MH).T)
        scores_QP = np.empty((len(self), len(passages)), np.float32)
        for run in runs(passages.offsets, _PRODUCT_ROWS):
            offsets, block_QP = passages.offsets[run.start : run.stop + 1], scores_QP[:, run]
            rows = slice(offsets[0], offsets[-1])
            # torch rejects memory-mapped arrays, which cannot be written to.
            codes_NH = torch.from_numpy(np.array(passages.codes_NH[rows]))
            products_NM = torch._int_mm(codes_NH, query_HM).numpy()  # noqa: SLF001  (torch has no public name for it)
            scales_N = passages.scales_N[rows]
            reduce_products(products_NM, scales_N, offsets - offsets[0], self.offsets, self.scales_M, block_QP)
        return scores_QP

    def chosen_scores(self, query: int, passages: Codes, chosen_C: np.ndarray) -> np.ndarray:
        """Return float32 [C], as `scores`, of one query with the passages numbered `chosen_C` (int64)."""
        rows = slice(self.offsets[query], self.offsets[query + 1])
        codes_MH, scales_M = self.codes_MH[rows], self.scales_M[rows]
        begins_C, ends_C = passages.offsets[chosen_C], passages.offsets[chosen_C + 1]
        scores_C = np.empty(len(chosen_C), np.float32)
        scan_of(codes_MH.shape[1])(passages.codes_NH, passages.scales_N, begins_C, ends_C, codes_MH, scales_M, scores_C)
        return scores_C / np.float32(rows.stop - rows.start)

    def slack(self, query: int, errors_P: np.ndarray, norms_P: np.ndarray) -> np.ndarray:
        """Return float [P]: bounds of the difference between this query's scores and the fp32 scores."""
        return self.norms_Q[query] * errors_P + self.errors_Q[query] * (norms_P + errors_P)

"""Candidates by centroids, as PLAID finds them: lists of passages near each query vector, ranked by their centroids.

Santhanam et al., 2022 (arXiv 2205.09707): every slot vector is known by its nearest centroid alone. A query vector
probes the lists of its best centroids; a found passage scores as if its vectors were their centroids, where centroids
that no query vector probed count as the last that it did. The authors' pruning is by a fixed cosine, which means
something else in every model; this one follows from the number of lists probed.

Legend: N vectors of a segment, P its passages, C centroids, H hidden size, T entries of all lists, L chosen lists,
M query vectors of one query, F found passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from diffretriever.codecs.codewords import nearest_centroids, spherical_centroids
from diffretriever.kernels import kernel
from diffretriever.representations import Representations, within
from diffretriever.schemas.accelerate import ProposerName
from diffretriever.search.dense.codes import Segment
from diffretriever.search.dense.proposer import KeepingProposer

FILE = "plaid.safetensors"
"""Beside a segment's codes."""
_TRAINING_VECTORS = 16
"""For each centroid."""
_VECTORS_AT_ONCE = 16_384
_FOUND_PER_CANDIDATE = 4
"""Entries of lists to look at, in each segment, for one candidate."""
_FEWEST_LISTS = 4


@dataclass(frozen=True)
class CentroidLists:
    """A segment's vectors by their centroids.

    Attributes:
        centroids_CH: float32 [C, H], of unit length.
        nearest_N: int32 [N], the centroid of each vector.
        entries_T: int32 [T], the passages of each centroid, none twice, centroid by centroid.
        borders: int64 [C + 1]; centroid i owns entries borders[i] to borders[i + 1].
    """

    centroids_CH: np.ndarray
    nearest_N: np.ndarray
    entries_T: np.ndarray
    borders: np.ndarray

    @classmethod
    def of(cls, segment: Segment, others: Sequence[Self]) -> Self:
        """Learn centroids from a sample of a segment's vectors and sort its passages by them."""
        vectors, offsets = segment.slots.vectors, segment.slots.vectors.offsets
        total = len(vectors.codes_NH)
        count = max(1, min(int(2 * np.sqrt(total)), total // 4))
        sample = np.random.default_rng(0).choice(total, min(total, count * _TRAINING_VECTORS), replace=False)
        centroids_CH = spherical_centroids(vectors.decoded(np.sort(sample)), count, seed=0)
        blocks = np.split(np.arange(total), range(_VECTORS_AT_ONCE, total, _VECTORS_AT_ONCE))
        parts = [nearest_centroids(vectors.decoded(rows), centroids_CH) for rows in blocks]
        nearest_N = np.concatenate(parts)
        owners_N = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        pairs_T = np.unique(nearest_N * len(offsets) + owners_N)
        borders = np.searchsorted(pairs_T, np.arange(count + 1) * len(offsets))
        return cls(centroids_CH, nearest_N.astype(np.int32), (pairs_T % len(offsets)).astype(np.int32), borders)

    def write(self, folder: Path) -> None:
        """Write one file into a folder."""
        safetensors.save_file(vars(self), folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote; raises OSError, ValueError, KeyError or TypeError for anything else."""
        try:
            return cls(**safetensors.load_file(folder / FILE))
        except SafetensorError as error:
            raise ValueError(str(error)) from error

    def fits(self, segment: Segment) -> bool:
        """Return whether all numbers lie within a segment."""
        if segment.codes.slots is None:
            return False
        passages, (n_vectors, hidden_size) = len(segment.codes), segment.codes.slots.vectors.codes_NH.shape
        count = len(self.centroids_CH)
        return (
            self.centroids_CH.shape == (count, hidden_size)
            and (self.nearest_N.shape, self.borders.shape) == ((n_vectors,), (count + 1,))
            and (self.borders[0], self.borders[-1]) == (0, len(self.entries_T))
            and bool((np.diff(self.borders) >= 0).all())
            and within(self.nearest_N, count)
            and within(self.entries_T, passages)
        )

    def probes(self, n: int) -> int:
        """Return how many lists to look into for each query vector, to find n passages with some to spare."""
        wanted = n * _FOUND_PER_CANDIDATE * len(self.borders) // max(1, len(self.entries_T))
        return min(len(self.centroids_CH), max(_FEWEST_LISTS, wanted))

    def found(
        self, vectors_MH: np.ndarray, gone_P: np.ndarray, offsets: np.ndarray, n: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages of the nearest lists and their scores by centroids, int64 [F] and float32 [F].

        Args:
            vectors_MH: float32 [M, H], of one query.
            gone_P: bool [P], passages not to be found.
            offsets: int64 [P + 1], of the segment's vectors.
            n: passages to find, with some to spare.
        """
        products_CM = self.centroids_CH @ vectors_MH.T
        probes = self.probes(n)
        order_CM = np.argpartition(-products_CM, probes - 1, axis=0)[:probes]
        floors_M = np.take_along_axis(products_CM, order_CM, axis=0).min(axis=0)
        near_C = (products_CM > floors_M).any(axis=1)
        passages_P = np.empty(len(gone_P), np.int64)
        count = collect(self.entries_T, self.borders, np.unique(order_CM), gone_P.copy(), passages_P)
        scores_F = np.empty(count, np.float32)
        interact(self.nearest_N, offsets, passages_P[:count], products_CM, near_C, floors_M, scores_F)
        return passages_P[:count], scores_F


class PlaidProposer(KeepingProposer[CentroidLists]):
    """Ranks passages by MaxSim over the centroids of their vectors."""

    name: ClassVar[ProposerName] = "plaid"
    content: ClassVar[str] = "centroids"
    needs_slots: ClassVar[bool] = True
    kept: ClassVar[str] = FILE
    keeps = CentroidLists

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return each query's n passages that are best by their centroids, of those in the lists probed."""
        vectors_MH = queries.vectors_MH.astype(np.float32)
        own = [slice(*queries.offsets[query : query + 2]) for query in range(len(queries))]
        return [self._ranked(vectors_MH[rows], n) for rows in own]

    def _ranked(self, vectors_MH: np.ndarray, n: int) -> np.ndarray:
        segments, starts = self.passages.segments, self.passages.starts[:-1]
        pairs = zip(self._kept, segments, strict=True)
        found = [lists.found(vectors_MH, ~s.live_P, s.slots.vectors.offsets, self._sought(n)) for lists, s in pairs]
        numbers_F = np.concatenate([start + passages for (passages, _), start in zip(found, starts, strict=True)])
        scores_F = np.concatenate([scores for _, scores in found])
        return numbers_F[np.argsort(-scores_F, kind="stable")[:n]]

    def _sought(self, n: int) -> int:
        """Return how many passages to look for, to find n that a filter admits."""
        live_P = self.passages.live_P
        return n * len(live_P) // max(1, int(live_P.sum()))


@kernel()
def collect(
    entries_T: np.ndarray, borders: np.ndarray, lists_L: np.ndarray, seen_P: np.ndarray, out_F: np.ndarray
) -> int:
    """Write the passages of the chosen lists, none twice, and return how many.

    Args:
        entries_T: int32 [T], passages list by list.
        borders: int64 [C + 1]; list i owns entries borders[i] to borders[i + 1].
        lists_L: int64 [L].
        seen_P: bool [P], True for passages that are not to be found; those found become True.
        out_F: int64 [P], its beginning is overwritten.
    """
    found = 0
    for chosen in lists_L:
        for t in range(borders[chosen], borders[chosen + 1]):
            passage = entries_T[t]
            if not seen_P[passage]:
                seen_P[passage] = True
                out_F[found] = passage
                found += 1
    return found


@kernel()
def interact(
    centroids_N: np.ndarray,
    offsets: np.ndarray,
    passages_F: np.ndarray,
    products_CM: np.ndarray,
    near_C: np.ndarray,
    floors_M: np.ndarray,
    out_F: np.ndarray,
) -> None:
    """Write the sum over query vectors of the best product with a near centroid of a passage's vectors, or the floor.

    Args:
        centroids_N: int32 [N], the centroid of each vector.
        offsets: int64 [P + 1]; passage i owns vectors offsets[i] to offsets[i + 1].
        passages_F: int64 [F].
        products_CM: float32 [C, M].
        near_C: bool [C]; other centroids are passed over.
        floors_M: float32 [M], what a query vector counts at least.
        out_F: float32 [F], overwritten.
    """
    best_M = np.empty_like(floors_M)
    for f in range(passages_F.shape[0]):
        best_M[:] = floors_M
        for n in range(offsets[passages_F[f]], offsets[passages_F[f] + 1]):
            centroid = centroids_N[n]
            if near_C[centroid]:
                for m in range(best_M.shape[0]):
                    best_M[m] = max(best_M[m], products_CM[centroid, m])
        total = np.float32(0)
        for m in range(best_M.shape[0]):
            total += best_M[m]
        out_F[f] = total

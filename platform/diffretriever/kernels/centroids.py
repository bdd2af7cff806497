"""Passages by the centroids of their vectors: which ones some lists hold, and what they score by centroids alone.

Legend: N vectors of all passages, P passages, C centroids, T entries of all lists, L chosen lists, F found passages,
M query vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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

"""Vectors as bytes: rotation, the nearest codeword of each byte, and the best product of each passage.

Legend: M vectors, D dimensions = G bytes of a vector x W dimensions of a byte, V = 256 values of a byte, N vectors of
all passages, P passages, L query vectors scored together.
"""

from __future__ import annotations

import numpy as np

from diffretriever.core.kernels import kernel

_VALUES = 256
"""Of a byte."""
_ROWS_AT_ONCE = 8
_ZERO = np.int32(0)
_MOST_NEGATIVE = np.float32(-np.inf)


@kernel()
def rotate(vectors_MD: np.ndarray, rotation_DD: np.ndarray, out_MD: np.ndarray) -> None:
    """Write [M, D] = [M, D] @ [D, D], float32; sums run over D in order, so a row does not depend on other rows."""
    for first in range(0, vectors_MD.shape[0], _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, vectors_MD.shape[0])
        out_MD[first:last] = np.float32(0)
        # A row of the matrix is read once for several vectors, since a large matrix fits no cache.
        for d in range(rotation_DD.shape[0]):
            for m in range(first, last):
                value = vectors_MD[m, d]
                for j in range(rotation_DD.shape[1]):
                    out_MD[m, j] += value * rotation_DD[d, j]


@kernel(fastmath={"nnan", "nsz", "contract"})
def nearest_codewords(
    points_MD: np.ndarray, codewords_GWV: np.ndarray, halves_GV: np.ndarray, codes_MG: np.ndarray
) -> None:
    """Write, for each vector and byte, the number of the nearest codeword; of equally near ones the last.

    Args:
        points_MD: float32 [M, D], finite.
        codewords_GWV: float32 [G, W, 256].
        halves_GV: float32 [G, 256], half the squared length of each codeword.
        codes_MG: uint8 [M, G], overwritten.
    """
    width = codewords_GWV.shape[1]
    nearness_V = np.empty(_VALUES, np.float32)
    for m in range(points_MD.shape[0]):
        for g in range(codewords_GWV.shape[0]):
            for v in range(_VALUES):
                nearness_V[v] = -halves_GV[g, v]
            for w in range(width):
                point = points_MD[m, g * width + w]
                for v in range(_VALUES):
                    nearness_V[v] += point * codewords_GWV[g, w, v]
            best = nearness_V[0]
            for v in range(_VALUES):
                best = max(best, nearness_V[v])
            found = _ZERO
            for v in range(_VALUES):
                found = max(found, np.int32(v) if nearness_V[v] == best else _ZERO)
            codes_MG[m, g] = np.uint8(found)


@kernel()
def add_to_codewords(points_MD: np.ndarray, codes_MG: np.ndarray, sums_GVW: np.ndarray, counts_GV: np.ndarray) -> None:
    """Add each vector's part to the sum (float64) and the count (int64) of the codeword it was given.

    Args:
        points_MD: float32, the vectors.
        codes_MG: uint8, the codeword that each part of a vector was given.
        sums_GVW: float64, added to.
        counts_GV: int64, added to.
    """
    width = sums_GVW.shape[2]
    for m in range(points_MD.shape[0]):
        for g in range(codes_MG.shape[1]):
            value = codes_MG[m, g]
            counts_GV[g, value] += 1
            for w in range(width):
                sums_GVW[g, value, w] += points_MD[m, g * width + w]


@kernel()
def best_of_passages(products_NL: np.ndarray, scales_N: np.ndarray, offsets: np.ndarray, best_PL: np.ndarray) -> None:
    """Write each query vector's largest scaled product with a vector of each passage; -inf where it has none.

    Args:
        products_NL: float32 [N, L].
        scales_N: float32 [N], each vector's factor, positive.
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1].
        best_PL: float32 [P, L], overwritten.
    """
    for p in range(best_PL.shape[0]):
        for q in range(best_PL.shape[1]):
            best_PL[p, q] = _MOST_NEGATIVE
        for n in range(offsets[p], offsets[p + 1]):
            scale = scales_N[n]
            for q in range(best_PL.shape[1]):
                best_PL[p, q] = max(best_PL[p, q], products_NL[n, q] * scale)

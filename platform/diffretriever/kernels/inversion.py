"""The inner loops of building an inverted index over impacts: from passages with terms to terms with passages.

Legend: V vocabulary, P postings, R passages of a block, I impacts of a batch or block.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def tally(ids_I: np.ndarray, weights_I: np.ndarray, counts_V: np.ndarray, peaks_V: np.ndarray) -> None:
    """Count each term's impacts (int64 `counts_V`) and note its largest weight (float32 `peaks_V`)."""
    for i in range(len(ids_I)):
        term = ids_I[i]
        counts_V[term] += 1
        peaks_V[term] = max(peaks_V[term], weights_I[i])


@njit(nogil=True, cache=True)
def place(
    impacts: tuple[np.ndarray, np.ndarray, np.ndarray],
    peaks_V: np.ndarray,
    cursors_V: np.ndarray,
    rows_P: np.ndarray,
    codes_P: np.ndarray,
    weights_P: np.ndarray,
) -> None:
    """Write one block's impacts to where their terms' postings are; blocks come in order.

    Args:
        impacts: ids int32 [I], weights float32 [I], offsets int64 [R + 1] of the block's passages.
        peaks_V: float32, each term's largest weight in the segment.
        cursors_V: int64, each term's next posting; moved on.
        rows_P: uint16, written.
        codes_P: uint8, written.
        weights_P: float32, written.
    """
    ids_I, weights_I, offsets = impacts
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            term = ids_I[i]
            p = cursors_V[term]
            cursors_V[term] = p + 1
            rows_P[p] = np.uint16(row)
            weights_P[p] = weights_I[i]
            # Exact: 255 times a float32 has 32 bits, so a quotient above a whole number is not rounded down to it.
            codes_P[p] = np.uint8(np.ceil(255.0 * np.float64(weights_I[i]) / np.float64(peaks_V[term])))

"""The inner loops of building and checking an inverted index over impacts: passages with terms, terms with passages.

Legend: V vocabulary, D terms that occur, B blocks, P postings, N passages, R passages of a block, I impacts of a batch
or block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from diffretriever.kernels.postings import BLOCK_ROWS


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


@njit(nogil=True, cache=True)
def digest_impacts(ids_I: np.ndarray, bits_I: np.ndarray, offsets: np.ndarray, digests_N: np.ndarray) -> None:
    """Add up, for each passage, a number that its impacts determine, whatever their order.

    Args:
        ids_I: int32.
        bits_I: uint32, the bits of the float32 weights.
        offsets: int64 [N + 1].
        digests_N: uint64, zeros; written.
    """
    for passage in range(len(offsets) - 1):
        for i in range(offsets[passage], offsets[passage + 1]):
            digests_N[passage] += _mixed(ids_I[i], bits_I[i])


@njit(nogil=True, cache=True)
def digest_postings(
    terms_D: np.ndarray, starts_DB: np.ndarray, rows_P: np.ndarray, bits_P: np.ndarray, digests_N: np.ndarray
) -> None:
    """Do the same from postings; `digests_N` has room for whole blocks."""
    for d in range(len(terms_D)):
        for block in range(starts_DB.shape[1] - 1):
            for p in range(starts_DB[d, block], starts_DB[d, block + 1]):
                digests_N[block * BLOCK_ROWS + rows_P[p]] += _mixed(terms_D[d], bits_P[p])


@njit(nogil=True, cache=True)
def _mixed(term: int, bits: int) -> np.uint64:
    # Odd multipliers and shifts that spread every bit; sums wrap around.
    mixed = (np.uint64(term) << np.uint64(32)) | np.uint64(bits)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))

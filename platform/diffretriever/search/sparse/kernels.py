"""The inner loops of an inverted index over impacts: exact search by bounds from 8-bit codes, building, checking.

A term's postings are in ascending order of passages. 65,536 passages are a block: a passage's row within it fits 16
bits, and the bounds of a block's scores stay in the processor's second-level cache while terms are added to them.
Bounds are whole multiples of a unit, so that adding rounds nothing.

No term is skipped because of its small weight, though its passages alone could not be among the best: to add a posting
in a row takes a nanosecond, and to look one up for a passage that other terms left takes tens.

Legend: V vocabulary, D terms that occur, B blocks, P postings, N passages, R passages (rows) of a block, I impacts of a
batch or block, T terms of a query, C candidates, L rows looked at together, S survivors.
"""

from __future__ import annotations

import numpy as np

from diffretriever.kernels import kernel

BLOCK_ROWS = 1 << 16
"""Passages of a block: a row within it fits 16 bits."""
_LOOK = 128
"""Rows looked at together."""
_BINS = 1 << 13
_BIN_WIDTH = 1 << 18
"""Bins of the histogram of bounds: together, they span all that a bound can be."""
_FEWEST_CANDIDATES = 1 << 13
"""So many are collected before some are dropped."""


@kernel()
def look_up(
    terms_D: np.ndarray, peaks_D: np.ndarray, ids_T: np.ndarray, positions_T: np.ndarray, peaks_T: np.ndarray
) -> None:
    """Find a query's terms in a segment.

    Args:
        terms_D: int32, ascending.
        peaks_D: float32, the largest weight of each.
        ids_T: int64, what to find.
        positions_T: int64, written: the place of each in D, -1 where it is not there.
        peaks_T: float32, written: its peak, 0 where it is not there.
    """
    for t in range(len(ids_T)):
        position = np.searchsorted(terms_D, ids_T[t])
        occurs = position < len(terms_D) and terms_D[position] == ids_T[t]
        positions_T[t] = position if occurs else -1
        peaks_T[t] = peaks_D[position] if occurs else np.float32(0)


@kernel()
def collect(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    deleted_N: np.ndarray,
    places: tuple[int, int],
    limits: tuple[int, int],
    bounds_R: np.ndarray,
    pool: tuple[np.ndarray, np.ndarray],
    state: np.ndarray,
) -> None:
    """Add a segment's passages that may be among the k best to the candidates of the segments before it.

    Args:
        arrays: uint32 [D, B + 1], first posting of each term in each block, the last column its end; uint16 [P], rows;
            uint8 [P], codes.
        query: int64 [T], places of the query's terms in D, negative for those that are not there, and int32 [T], what
            a step of each term's code is worth.
        deleted_N: bool, or empty if no passage is deleted.
        places: what the segment's first passage counts as, the others following, and N.
        limits: k, at least 1, and the margin, by how much a bound may exceed its score.
        bounds_R: int32 [BLOCK_ROWS], for use in here.
        pool: upper bounds int32 and places int64 of the candidates, room for every passage of all segments.
        state: int64 [3], see `new_state`; changed.
    """
    starts_DB, rows_P, codes_P = arrays
    first_place, n_passages = places
    bounds_C, places_C = pool
    k, margin = limits
    for block in range(starts_DB.shape[1] - 1):
        first_row = block * BLOCK_ROWS
        # Small segments are common: only rows that are there are looked at.
        n_rows = min(BLOCK_ROWS, -(-(n_passages - first_row) // _LOOK) * _LOOK)
        _add_terms(starts_DB, rows_P, codes_P, query, block, bounds_R[:n_rows])
        for row in range(0, n_rows, _LOOK):
            bounds_L = bounds_R[row : row + _LOOK]
            threshold = np.int32(state[1])
            if not _any_reaches(bounds_L, threshold):
                continue
            # Rows beyond the last passage are those of damaged postings: there is no room for them in the pool.
            bounds_L = bounds_L[: n_passages - first_row - row]
            deleted_L = deleted_N[first_row + row : first_row + row + _LOOK]
            place = first_place + first_row + row
            state[0] = _append(bounds_L, deleted_L, place, threshold, bounds_C, places_C, state[0])
            if state[0] >= state[2]:
                keep_best(pool, state, k, margin)


def new_state(k: int) -> np.ndarray:
    """Return the state of a search for the k best: candidates there are, what a bound must reach, when to drop some."""
    return np.array([0, 1, max(_FEWEST_CANDIDATES, 4 * k)])


@kernel()
def _add_terms(
    starts_DB: np.ndarray,
    rows_P: np.ndarray,
    codes_P: np.ndarray,
    query: tuple[np.ndarray, np.ndarray],
    block: int,
    bounds_R: np.ndarray,
) -> None:
    positions_T, steps_T = query
    bounds_R[:] = 0
    for t in range(len(positions_T)):
        if positions_T[t] < 0:
            continue
        begin, end = starts_DB[positions_T[t], block], starts_DB[positions_T[t], block + 1]
        rows, codes, step = rows_P[begin:end], codes_P[begin:end], steps_T[t]
        for p in range(len(rows)):
            bounds_R[rows[p]] = np.int32(bounds_R[rows[p]] + np.int32(step * np.int32(codes[p])))


@kernel()
def _any_reaches(bounds_L: np.ndarray, threshold: np.int32) -> bool:
    # Without a branch in the loop it becomes vector instructions.
    found = np.uint8(0)
    for i in range(_LOOK):
        found |= np.uint8(bounds_L[i] >= threshold)
    return found != 0


@kernel()
def _append(
    bounds_L: np.ndarray,
    deleted_L: np.ndarray,
    place: int,
    threshold: np.int32,
    bounds_C: np.ndarray,
    places_C: np.ndarray,
    count: int,
) -> int:
    for i in range(len(bounds_L)):
        if bounds_L[i] >= threshold and not (i < len(deleted_L) and deleted_L[i]):
            bounds_C[count] = bounds_L[i]
            places_C[count] = place + i
            count += 1
    return count


@kernel()
def keep_best(pool: tuple[np.ndarray, np.ndarray], state: np.ndarray, k: int, margin: int) -> None:
    """Raise the threshold to where the k best bounds begin, less the margin; drop, in place, what lies below.

    Args:
        pool: bounds int32 and places int64 of the candidates; changed.
        state: int64 [3], see `new_state`; changed.
        k: passages wanted.
        margin: by how much a bound may be too high.
    """
    bounds_C, places_C = pool
    count, threshold = state[0], np.int32(state[1])
    if count >= k:
        histogram = np.zeros(_BINS, np.int64)
        for c in range(count):
            histogram[bounds_C[c] // _BIN_WIDTH] += 1
        lowest = _BINS
        better = 0
        while better < k:
            lowest -= 1
            better += histogram[lowest]
        threshold = max(threshold, np.int32(lowest * _BIN_WIDTH - margin))
    kept = 0
    for c in range(count):
        if bounds_C[c] >= threshold:
            bounds_C[kept], places_C[kept] = bounds_C[c], places_C[c]
            kept += 1
    state[0], state[1], state[2] = kept, threshold, max(state[2], 2 * kept)


@kernel()
def score(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    survivors_S: np.ndarray,
    marks_R: np.ndarray,
    scores_S: np.ndarray,
) -> None:
    """Add up the exact scores of chosen passages, in float32 and in the query's order of terms.

    Args:
        arrays: starts and rows as in `collect`, and float32 [P], weights.
        query: int64 [T], places of the query's terms in D, negative for those that are not there, and float32 [T],
            their weights.
        survivors_S: int64, numbers of passages in the segment, ascending.
        marks_R: int32 [BLOCK_ROWS], zeros before and after.
        scores_S: float32, zeros; written.
    """
    first = 0
    while first < len(survivors_S):
        block = survivors_S[first] // BLOCK_ROWS
        last = first
        while last < len(survivors_S) and survivors_S[last] // BLOCK_ROWS == block:
            last += 1
            marks_R[survivors_S[last - 1] % BLOCK_ROWS] = last
        _add_weights(arrays, query, block, marks_R, scores_S)
        for s in range(first, last):
            marks_R[survivors_S[s] % BLOCK_ROWS] = 0
        first = last


@kernel()
def _add_weights(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    block: int,
    marks_R: np.ndarray,
    scores_S: np.ndarray,
) -> None:
    starts_DB, rows_P, weights_P = arrays
    positions_T, query_weights_T = query
    for t in range(len(positions_T)):
        if positions_T[t] < 0:
            continue
        begin, end = starts_DB[positions_T[t], block], starts_DB[positions_T[t], block + 1]
        rows, weights = rows_P[begin:end], weights_P[begin:end]
        for p in range(len(rows)):
            mark = marks_R[rows[p]]
            if mark > 0:
                scores_S[mark - 1] += query_weights_T[t] * weights[p]


@kernel()
def tally(ids_I: np.ndarray, weights_I: np.ndarray, counts_V: np.ndarray, peaks_V: np.ndarray) -> None:
    """Count each term's impacts (int64 `counts_V`) and note its largest weight (float32 `peaks_V`).

    Args:
        ids_I: terms of the impacts.
        weights_I: float32, their weights.
        counts_V: int64, by term, added to.
        peaks_V: float32, by term, raised.
    """
    for i in range(len(ids_I)):
        term = ids_I[i]
        counts_V[term] += 1
        peaks_V[term] = max(peaks_V[term], weights_I[i])


@kernel()
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


@kernel()
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


@kernel()
def digest_postings(
    terms_D: np.ndarray, starts_DB: np.ndarray, rows_P: np.ndarray, bits_P: np.ndarray, digests_N: np.ndarray
) -> None:
    """Do the same from postings; `digests_N` has room for whole blocks.

    Args:
        terms_D: the terms.
        starts_DB: uint32 [D, B + 1], where the postings of a term begin in each block.
        rows_P: uint16.
        bits_P: uint32, the bits of the float32 weights.
        digests_N: uint64, zeros; written. It has room for whole blocks.
    """
    for d in range(len(terms_D)):
        for block in range(starts_DB.shape[1] - 1):
            for p in range(starts_DB[d, block], starts_DB[d, block + 1]):
                digests_N[block * BLOCK_ROWS + rows_P[p]] += _mixed(terms_D[d], bits_P[p])


@kernel()
def _mixed(term: int, bits: int) -> np.uint64:
    # Odd multipliers and shifts that spread every bit; sums wrap around.
    mixed = (np.uint64(term) << np.uint64(32)) | np.uint64(bits)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))

"""Compiled loops of an inverted index: exact search and building.

A term's postings are in ascending order of passages. A block is 65,536 passages: a row within it fits 16 bits, and the
scores of a block stay in the second-level cache while terms are added to them.

A hit is one number, its key. The upper half has the bits of its float32 score, which are ordered as positive scores
are; the lower half is the complement of its number in the order of the index. So keys rank passages, ties included.

Terms with small weights are not skipped: adding the next posting takes a nanosecond, looking one up for a passage of
other terms takes tens.

Legend: D terms that occur, B blocks, P postings, N passages, R passages (rows) of a block, I impacts of a block,
T terms of a query, C keys, L rows checked together.
"""

from __future__ import annotations

import numpy as np

from diffretriever.core.kernels import kernel

BLOCK_ROWS = 1 << 16
"""Passages per block; row numbers fit 16 bits."""
_LOOK = 128
"""Rows checked together."""
COMPLEMENT = 0xFFFFFFFF
"""The lower half of a key is this minus the passage's number."""


@kernel()
def look_up(terms_D: np.ndarray, ids_T: np.ndarray, positions_T: np.ndarray) -> None:
    """Write the position of each term (ids_T) in terms_D (int32, ascending) to positions_T, int64; -1 if absent."""
    for t in range(len(ids_T)):
        position = np.searchsorted(terms_D, ids_T[t])
        occurs = position < len(terms_D) and terms_D[position] == ids_T[t]
        positions_T[t] = position if occurs else -1


@kernel()
def new_pool(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory for the keys of a top-k search, and its state: number of keys, and minimum bits of a score."""
    return np.empty(2 * k + _LOOK, np.uint64), np.array([0, 1])


@kernel()
def best_keys(pool: tuple[np.ndarray, np.ndarray], k: int) -> np.ndarray:
    """Return up to k highest keys of a pool, uint64, unordered."""
    keys_C, state = pool
    return keys_C[: state[0] if state[0] <= k else _keep_best(keys_C, state[0], k)]


@kernel()
def collect(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    numbers_N: np.ndarray,
    scores: tuple[np.ndarray, np.ndarray],
    pool: tuple[np.ndarray, np.ndarray],
    k: int,
) -> None:
    """Add the keys of a segment's passages to `pool` (`new_pool`); the k highest keys of all segments are among them.

    `arrays` are starts_DB, rows_P and weights_P of the segment. `query` is each term's position in D (int64 [T],
    negative if absent) and weight (float32 [T]); products are added in this order. `numbers_N` (int32) are the
    passages' numbers; negative excludes a passage. `scores` is memory for a block: float32, and as int32.
    """
    totals_R, bits_R = scores
    for block in range(arrays[0].shape[1] - 1):
        numbers_R = numbers_N[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
        # Small segments are common, so check only their rows. Damaged postings can have others.
        _add_weights(arrays, query, block, totals_R[: -(-len(numbers_R) // _LOOK) * _LOOK])
        select(bits_R, numbers_R, pool, k)


@kernel()
def _add_weights(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    query: tuple[np.ndarray, np.ndarray],
    block: int,
    totals_R: np.ndarray,
) -> None:
    starts_DB, rows_P, weights_P = arrays
    positions_T, query_weights_T = query
    totals_R[:] = 0
    for t in range(len(positions_T)):
        if positions_T[t] < 0:
            continue
        begin, end = starts_DB[positions_T[t], block], starts_DB[positions_T[t], block + 1]
        rows, weights, query_weight = rows_P[begin:end], weights_P[begin:end], query_weights_T[t]
        for p in range(len(rows)):
            totals_R[rows[p]] += query_weight * weights[p]


@kernel()
def select(bits_R: np.ndarray, numbers_R: np.ndarray, pool: tuple[np.ndarray, np.ndarray], k: int) -> None:
    """Add the keys of a block's top-k candidates, by the bits of their scores (int32)."""
    keys_C, state = pool
    count, lowest = state[0], np.int32(state[1])
    for row in range(0, len(numbers_R), _LOOK):
        bits_L = bits_R[row : row + _LOOK]
        if not _any_reaches(bits_L, lowest):
            continue
        if count + _LOOK > len(keys_C):
            count = _keep_best(keys_C, count, k)
            lowest = np.int32(keys_C[k - 1] >> np.uint64(32))
        count = _append(bits_L, numbers_R[row : row + _LOOK], lowest, keys_C, count)
    state[0], state[1] = count, lowest


@kernel()
def _any_reaches(bits_L: np.ndarray, lowest: np.int32) -> bool:
    # Without a branch in the loop it becomes vector instructions.
    reached = np.uint8(0)
    for i in range(_LOOK):
        reached |= np.uint8(bits_L[i] >= lowest)
    return reached != 0


@kernel()
def _append(bits_L: np.ndarray, numbers_L: np.ndarray, lowest: np.int32, keys_C: np.ndarray, count: int) -> int:
    for i in range(len(numbers_L)):
        if bits_L[i] >= lowest and numbers_L[i] >= 0:
            keys_C[count] = (np.uint64(bits_L[i]) << np.uint64(32)) | np.uint64(COMPLEMENT - numbers_L[i])
            count += 1
    return count


@kernel()
def _keep_best(keys_C: np.ndarray, count: int, k: int) -> int:
    """Move the k highest of the first `count` keys, which are more, to the front, the k-th last; return k.

    Hoare's quickselect; `np.partition` takes five seconds longer to compile.
    """
    low, high = 0, count - 1
    while low < high:
        pivot, i, j = keys_C[(low + high) // 2], low, high
        while i <= j:
            while keys_C[i] > pivot:
                i += 1
            while keys_C[j] < pivot:
                j -= 1
            if i <= j:
                keys_C[i], keys_C[j] = keys_C[j], keys_C[i]
                i, j = i + 1, j - 1
        if k <= j + 1:
            high = j
        elif k > i:
            low = i
        else:
            break
    return k


@kernel()
def scatter(
    impacts: tuple[np.ndarray, np.ndarray, np.ndarray],
    cursors_V: np.ndarray,
    rows_P: np.ndarray,
    weights_P: np.ndarray,
) -> None:
    """Write one block's impacts to the postings of their terms; blocks come in order.

    `impacts` are ids (int32 [I]), weights (float32 [I]) and offsets (int64 [R + 1]); `cursors_V` (int64) are the next
    posting of each term.
    """
    ids_I, weights_I, offsets = impacts
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            p = cursors_V[ids_I[i]]
            cursors_V[ids_I[i]] = p + 1
            rows_P[p] = np.uint16(row)
            weights_P[p] = weights_I[i]

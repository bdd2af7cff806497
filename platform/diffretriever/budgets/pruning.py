"""Fewer slots for passages that need fewer: which vectors to drop so that the least is lost (the paper's future work).

Legend: K slots, H hidden size.
"""

from __future__ import annotations

import numpy as np


def removal_order(vectors_KH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return in which order to drop a passage's slots, and what is lost by then.

    MaxSim takes the best slot of a passage for each query vector. Where a slot is gone, its nearest kept neighbour
    answers instead, and a query vector loses at most their distance. So the loss of a set of dropped slots is the sum
    over them of 1 - cosine to the nearest kept slot (half the squared distance of unit vectors), and slots are dropped
    one by one, each time the one that adds least; of equals the later one. Two copies of one vector cost nothing.

    Args:
        vectors_KH: floating [K, H], unit length, K at least 1.

    Returns:
        order: int64 [K - 1], slots in the order in which they go; the last slot stays.
        losses: float64 [K - 1], the loss after each, never falling but for rounding; 0 is nothing, 2 the opposite.
    """
    cosines_KK = vectors_KH.astype(np.float64) @ vectors_KH.astype(np.float64).T
    kept = np.ones(len(vectors_KH), dtype=bool)
    order, losses = [], []
    for _ in range(len(vectors_KH) - 1):
        loss, slot = min((_loss(cosines_KK, kept, slot), -slot) for slot in np.flatnonzero(kept).tolist())
        kept[-slot] = False
        order.append(-slot)
        losses.append(loss)
    return np.array(order, dtype=np.int64), np.array(losses, dtype=np.float64)


def kept_slots(vectors_KH: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the slots that stay when as many go as cost at most `tolerance` together, int64 ascending, at least one.

    Args:
        vectors_KH: floating [K, H], unit length, K at least 1.
        tolerance: in the units of `removal_order`'s losses; 0 drops copies only, up to rounding of 1e-6.
    """
    order, losses = removal_order(vectors_KH)
    n_dropped = int(np.searchsorted(np.maximum.accumulate(losses), tolerance + 1e-6, side="right"))
    return np.setdiff1d(np.arange(len(vectors_KH)), order[:n_dropped])


def _loss(cosines_KK: np.ndarray, kept: np.ndarray, slot: int) -> float:
    """Return the loss when `slot` goes besides those that are gone."""
    stays = kept.copy()
    stays[slot] = False
    return float((1.0 - cosines_KK[~stays][:, stays].max(axis=1)).sum())

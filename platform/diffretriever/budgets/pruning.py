"""Fewer slots for passages that need fewer: which vectors to drop so that the least is lost (the paper's future work).

Legend: K slots, N vectors of all passages, P passages, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_PASSAGES_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Removals:
    """In which order the slots of many passages go, and at what cost.

    Attributes:
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1].
        ranks_N: int64 [N], 0 for the slot of a passage that goes first; its last slot never goes.
        costs_N: float64 [N], what a removal adds to its passage's loss, at least as much as those before it; infinite
            for the slot that stays.
    """

    offsets: np.ndarray
    ranks_N: np.ndarray
    costs_N: np.ndarray

    def keep_each(self, most: int) -> np.ndarray:
        """Return which vectors stay when every passage keeps its last `most`, bool [N]; `most` is at least 1."""
        counts_P = np.diff(self.offsets)
        return self.ranks_N >= np.repeat(counts_P - most, counts_P)

    def keep_total(self, total: int) -> np.ndarray:
        """Return which vectors stay when the cheapest removals of all passages leave `total` vectors, bool [N].

        So there is one threshold on the cost for all, and passages with redundant slots lose more of them. Of equal
        costs the slots that come earlier in their passages' orders go, then those of earlier passages. Every passage
        keeps a slot, and so never fewer than P vectors stay.
        """
        removable = int(np.isfinite(self.costs_N).sum())
        n_dropped = min(max(len(self.costs_N) - total, 0), removable)
        kept_N = np.ones(len(self.costs_N), dtype=bool)
        kept_N[np.lexsort((self.ranks_N, self.costs_N))[:n_dropped]] = False
        return kept_N


def removals(vectors_NH: np.ndarray, offsets: np.ndarray) -> Removals:
    """Return the removals of all passages, each by itself as `removal_order` has them.

    Args:
        vectors_NH: floating [N, H], unit length.
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1].
    """
    ranks_N = np.zeros(len(vectors_NH), dtype=np.int64)
    costs_N = np.full(len(vectors_NH), np.inf)
    counts_P = np.diff(offsets)
    for count in np.unique(counts_P[counts_P > 0]).tolist():
        alike = offsets[:-1][counts_P == count]
        for start in range(0, len(alike), _PASSAGES_AT_ONCE):
            rows_PK = alike[start : start + _PASSAGES_AT_ONCE, None] + np.arange(count)
            order_PK, losses_PK = _removal_orders(vectors_NH[rows_PK])
            gone_PK = np.take_along_axis(rows_PK, order_PK, axis=1)
            stays_P1 = rows_PK.sum(axis=1, keepdims=True) - gone_PK.sum(axis=1, keepdims=True)
            ranks_N[gone_PK], ranks_N[stays_P1] = np.arange(count - 1), count - 1
            costs_N[gone_PK] = np.maximum.accumulate(np.diff(losses_PK, prepend=0.0, axis=1), axis=1)
    return Removals(offsets, ranks_N, costs_N)


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
    order_1K, losses_1K = _removal_orders(vectors_KH[None])
    return order_1K[0], losses_1K[0]


def _removal_orders(vectors_PKH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return order and losses of passages with equally many slots, [P, K - 1] each."""
    n_passages, n_slots = vectors_PKH.shape[:2]
    wide_PKH = vectors_PKH.astype(np.float64)
    cosines_PKK = wide_PKH @ wide_PKH.swapaxes(1, 2)
    # A product's last bits may depend on the side, and copies must tie.
    cosines_PKK = np.maximum(cosines_PKK, cosines_PKK.swapaxes(1, 2))
    everyone, slots = np.arange(n_passages), np.arange(n_slots)
    others_PKK = cosines_PKK.copy()
    others_PKK[:, slots, slots] = -np.inf
    kept_PK = np.ones((n_passages, n_slots), dtype=bool)
    order_PK = np.empty((n_passages, n_slots - 1), dtype=np.int64)
    losses_PK = np.empty((n_passages, n_slots - 1))
    for step in range(n_slots - 1):
        candidates_PK = _losses(others_PKK, kept_PK)
        # The last of equals.
        gone_P = n_slots - 1 - candidates_PK[:, ::-1].argmin(axis=1)
        order_PK[:, step], losses_PK[:, step] = gone_P, candidates_PK[everyone, gone_P]
        kept_PK[everyone, gone_P] = False
    return order_PK, losses_PK


def _losses(others_PKK: np.ndarray, kept_PK: np.ndarray) -> np.ndarray:
    """Return the loss when each kept slot goes besides those that are gone, [P, K]; infinite for one that is gone.

    A slot that is gone is answered by its nearest kept slot, or by its second nearest when the nearest goes too.
    """
    near_PKK = np.where(kept_PK[:, None, :], others_PKK, -np.inf)
    places_PK = near_PKK.argmax(axis=2)
    first_PK = near_PKK.max(axis=2)
    np.put_along_axis(near_PKK, places_PK[:, :, None], -np.inf, axis=2)
    second_PK = near_PKK.max(axis=2)
    gone_PK = ~kept_PK
    now_P1 = np.where(gone_PK, 1.0 - first_PK, 0.0).sum(axis=1, keepdims=True)
    losses_PK = now_P1 + (1.0 - first_PK)
    with np.errstate(invalid="ignore"):
        rises_PK = np.where(gone_PK, first_PK - second_PK, 0.0)
    owners = np.nonzero(gone_PK)
    np.add.at(losses_PK, (owners[0], places_PK[owners]), rises_PK[owners])
    return np.where(kept_PK, losses_PK, np.inf)

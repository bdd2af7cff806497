"""How far queries are lowered while many requests wait, so that fewer are refused: a level, and what it leaves them.

A replica refuses whoever comes while `max_ongoing` requests are being worked on. From a third of that number on, who
comes gets less, within the bounds of `LoadBudget`: fewer query slots, and fewer passages of lists that are summed, or
that a candidate index names. Level 2, from two thirds on, is the bounds themselves; level 1 is the geometric mean of
these and of what there is without load.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from diffretriever.schemas.serve_config import LoadBudget
from diffretriever.vectors.fusion import FUSION_DEPTH

RISES = (1 / 3, 2 / 3)
"""For each level above 0, the share of the most requests from which on it is in force, at once."""
FALLS = tuple(share / 2 for share in RISES)
"""For each of them, the share below which the load must stay before the level falls: so levels do not flutter."""
CALM_S = 1.0
"""Seconds for which the load stays below that share before a level falls to the one below it."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that a request is given; None: as much as without load.

    Attributes:
        level: that says so, from 0.
        query_slots: K_q of a query whose request names none.
        candidates: passages of each list that is summed, and of those that a candidate index names.
    """

    level: int = 0
    query_slots: int | None = None
    candidates: int | None = None


ALL = Caps()
"""What a request is given without load."""


def ladder(bounds: LoadBudget, own_budget: int | None) -> tuple[Caps, ...]:
    """Return what each level leaves a request, from level 0, which is all; only that where no bound is stated.

    Args:
        bounds: the least that a request may be given.
        own_budget: the retriever's K_q; None where queries have no budget.

    Raises:
        ValueError: a bound that can have no effect.
    """
    slots, candidates = bounds.least_query_slots, bounds.least_candidates
    if slots is None and candidates is None:
        return (ALL,)
    if slots is not None and own_budget is None:
        raise ValueError("load.least_query_slots: this index's retriever has no query budget: leave it out")
    if slots is not None and own_budget is not None and slots > own_budget:
        raise ValueError(f"load.least_query_slots is {slots}, and the retriever's own K_q is {own_budget}: give less")
    if candidates is not None and candidates >= FUSION_DEPTH:
        raise ValueError(
            f"load.least_candidates is {candidates}: give less than {FUSION_DEPTH}, the number without load"
        )
    levels = range(1, len(RISES) + 1)
    return ALL, *(Caps(n, _between(own_budget, slots, n), _between(FUSION_DEPTH, candidates, n)) for n in levels)


def _between(most: int | None, least: int | None, level: int) -> int | None:
    """Return the number at a level on the way from `most` to `least`, in equal ratios, rounded up."""
    if most is None or least is None:
        return None
    share = level / len(RISES)
    # Rounded first, so that a root that is whole stays what it is.
    return math.ceil(round(most ** (1 - share) * least**share, 6))


class Load:
    """The level that is in force. To be used from one event loop.

    It rises as soon as the load does, and falls level by level once the load has stayed low for a while.
    """

    def __init__(self, most: int, levels: tuple[Caps, ...], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at level 0.

        Args:
            most: requests that are worked on at a time before others are refused.
            levels: what each level leaves a request, as `ladder` returns it.
            clock: seconds, from any beginning.
        """
        self._most, self._levels, self._clock = most, levels, clock
        self._level, self._share = 0, 0.0
        self._calm_since: float | None = None
        """When the load was first seen below the share at which the level falls; None while it is not."""

    @property
    def caps(self) -> Caps:
        """What a request is given now."""
        return self._levels[self._level]

    def observe(self, ongoing: int) -> None:
        """Hear that so many requests are being worked on: whenever one begins, before it is looked at, and ends."""
        now = self._clock()
        self._fall(now)
        self._share = ongoing / self._most
        risen = sum(self._share >= rise for rise in RISES[: len(self._levels) - 1])
        self._level = max(self._level, risen)
        if not self._is_calm:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    @property
    def _is_calm(self) -> bool:
        return self._level > 0 and self._share < FALLS[self._level - 1]

    def _fall(self, now: float) -> None:
        """Fall by a level for each calm spell that has passed with the load as it was last heard of."""
        while self._calm_since is not None and now - self._calm_since >= CALM_S:
            self._level -= 1
            self._calm_since = self._calm_since + CALM_S if self._is_calm else None

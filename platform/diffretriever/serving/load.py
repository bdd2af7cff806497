"""Load levels, which reduce queries under load so that fewer requests are rejected.

A replica rejects requests above `max_ongoing`. From a third of that number, requests get fewer query slots and fewer
candidates per fused list or candidate index, within the bounds of `LoadBudget`. Level 2, from two thirds, applies
these bounds; level 1 applies the geometric mean of the bounds and the unloaded values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from diffretriever.schemas.serve_config import LoadBudget
from diffretriever.vectors.fusion import FUSION_DEPTH

RISES = (1 / 3, 2 / 3)
"""Load, as a share of `max_ongoing`, that raises the level to 1 and to 2, at once."""
FALLS = tuple(share / 2 for share in RISES)
"""Load below which the level can fall again: lower than `RISES`, so that levels do not oscillate."""
CALM_S = 1.0
"""Seconds of low load before the level falls by one."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds for a request; None: unbounded.

    Attributes:
        level: load level, from 0.
        query_slots: K_q of a query without an explicit budget.
        candidates: passages of each fused list, and passages that a candidate index retrieves.
    """

    level: int = 0
    query_slots: int | None = None
    candidates: int | None = None


NO_CAPS = Caps()
"""Caps without load."""


def load_levels(bounds: LoadBudget, own_budget: int | None) -> tuple[Caps, ...]:
    """Return the caps of each level, from level 0; level 0 alone if no bound is set.

    Args:
        bounds: lower bounds of the caps.
        own_budget: the retriever's K_q; None if queries have no budget.

    Raises:
        ValueError: a bound has no effect.
    """
    slots, candidates = bounds.least_query_slots, bounds.least_candidates
    if slots is None and candidates is None:
        return (NO_CAPS,)
    if slots is not None and own_budget is None:
        raise ValueError("load.least_query_slots: this index's retriever has no query budget: leave it out")
    if slots is not None and own_budget is not None and slots > own_budget:
        raise ValueError(f"load.least_query_slots is {slots}, and the retriever's K_q is {own_budget}: set less")
    if candidates is not None and candidates >= FUSION_DEPTH:
        raise ValueError(
            f"load.least_candidates is {candidates}: set less than {FUSION_DEPTH}, the number without load"
        )
    levels = range(1, len(RISES) + 1)
    return NO_CAPS, *(Caps(n, _between(own_budget, slots, n), _between(FUSION_DEPTH, candidates, n)) for n in levels)


def _between(most: int | None, least: int | None, level: int) -> int | None:
    """Interpolate geometrically, rounded up."""
    if most is None or least is None:
        return None
    share = level / len(RISES)
    # Round first: an exact root must not be rounded up.
    return math.ceil(round(most ** (1 - share) * least**share, 6))


class Load:
    """The current load level. Use it from one event loop.

    It rises at once with the load, and falls level by level after the load has stayed low.
    """

    def __init__(self, most: int, levels: tuple[Caps, ...], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at level 0.

        Args:
            most: maximum number of requests in progress.
            levels: caps of each level, from `load_levels`.
            clock: returns seconds.
        """
        self._most, self._levels, self._clock = most, levels, clock
        self._level, self._share = 0, 0.0
        self._calm_since: float | None = None
        """Time since which the load is below the falling threshold; None: it is not."""

    @property
    def caps(self) -> Caps:
        """Caps of the current level."""
        return self._levels[self._level]

    def observe(self, ongoing: int) -> None:
        """Record the number of requests in progress. Call it when a request begins and ends."""
        now = self._clock()
        self._fall(now)
        self._share = ongoing / self._most
        level = sum(self._share >= rise for rise in RISES[: len(self._levels) - 1])
        self._level = max(self._level, level)
        if not self._is_calm:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    @property
    def _is_calm(self) -> bool:
        return self._level > 0 and self._share < FALLS[self._level - 1]

    def _fall(self, now: float) -> None:
        while self._calm_since is not None and now - self._calm_since >= CALM_S:
            self._level -= 1
            self._calm_since = self._calm_since + CALM_S if self._is_calm else None

"""The same budget for every query: what the paper deploys."""

from __future__ import annotations

from collections.abc import Mapping

from diffretriever.budgets.selectors.base import Selector


class FixedSelector(Selector):
    """Chooses one K_q always."""

    def __init__(self, budget: int) -> None:
        if budget < 1:
            raise ValueError(f"a query needs at least one slot, got {budget}")
        self._budget = budget

    @property
    def name(self) -> str:
        """Such as `fixed:4`."""
        return f"fixed:{self._budget}"

    @property
    def budgets(self) -> tuple[int, ...]:
        """The one."""
        return (self._budget,)

    @property
    def features(self) -> tuple[str, ...]:
        """None."""
        return ()

    def choose(self, features: Mapping[str, float]) -> int:
        """Return the one K_q."""
        return self._budget

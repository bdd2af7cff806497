"""The default where nothing was fitted: longer queries get more slots, as the paper's dense panels have it (Fig. 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from diffretriever.budgets.selectors.base import Selector, feature_value

DEFAULT_BUDGETS = (1, 2, 4, 8, 16)
_FEWEST, _MOST = 2.0, 8.0
_SUBWORDS_A_SLOT = 4.0


class RuleSelector(Selector):
    """A slot for every four subwords, from 2 for the shortest queries to 8 for the longest.

    The paper gives the two ends: the best K_q rises "from approximately 2 for the shortest queries to approximately 8
    for the longest". That four subwords make a slot in between is our reading: 8 subwords, a typical web query, get 2,
    16 get 4, and from 32 on it is 8. The allowed budget nearest on a scale of ratios is taken, of two the smaller, so
    the choice never falls with length.
    """

    def __init__(self, budgets: Sequence[int] = DEFAULT_BUDGETS) -> None:
        """Choose among `budgets`, at least one; raises `ValueError` for less."""
        if not budgets or min(budgets) < 1:
            raise ValueError(f"budgets {list(budgets)}: give the allowed K_q, each at least 1")
        self._budgets = tuple(sorted(set(budgets)))

    @property
    def name(self) -> str:
        """Always `rule`."""
        return "rule"

    @property
    def budgets(self) -> tuple[int, ...]:
        """Those allowed."""
        return self._budgets

    @property
    def features(self) -> tuple[str, ...]:
        """The length alone."""
        return ("length",)

    def choose(self, features: Mapping[str, float]) -> int:
        """Return the allowed K_q nearest to a quarter of the length, that kept within 2..8."""
        wanted = min(max(feature_value(features, "length") / _SUBWORDS_A_SLOT, _FEWEST), _MOST)
        return min(self._budgets, key=lambda budget: (abs(math.log2(budget / wanted)), budget))

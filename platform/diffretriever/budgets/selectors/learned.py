"""A fitted selector: the budget whose predicted value, less what its slots cost, is highest."""

from __future__ import annotations

from collections.abc import Mapping

from diffretriever.budgets.selectors.base import Selector, feature_value
from schemas.selector import LearnedSelectorArtefact


class LearnedSelector(Selector):
    """Evaluates a `LearnedSelectorArtefact`, without any library."""

    def __init__(self, artefact: LearnedSelectorArtefact) -> None:
        self.artefact = artefact

    @property
    def name(self) -> str:
        """Such as `learned λ=0.001`."""
        return f"learned λ={self.artefact.cost:g}"

    @property
    def budgets(self) -> tuple[int, ...]:
        """Those it was fitted for."""
        return self.artefact.budgets

    @property
    def features(self) -> tuple[str, ...]:
        """Those it was fitted with."""
        return tuple(feature.name for feature in self.artefact.features)

    def choose(self, features: Mapping[str, float]) -> int:
        """Return the K_q of the highest predicted value less λ·K_q; of equals the smallest.

        Features outside what training saw count as its nearest end: a line says nothing about longer queries than any.
        """
        artefact = self.artefact
        standard = [
            (min(max(feature_value(features, f.name), f.low), f.high) - f.centre) / f.scale for f in artefact.features
        ]
        scores = {
            budget: intercept + sum(c * x for c, x in zip(row, standard, strict=True)) - artefact.cost * budget
            for budget, intercept, row in zip(artefact.budgets, artefact.intercepts, artefact.coefficients, strict=True)
        }
        return max(scores, key=lambda budget: (scores[budget], -budget))

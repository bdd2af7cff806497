"""What chooses a query's budget before the query is encoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class Selector(ABC):
    """Chooses K_q from cheap features of a query."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A name for tables."""

    @property
    @abstractmethod
    def budgets(self) -> tuple[int, ...]:
        """The K_q it chooses from, ascending."""

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """Names of the features it looks at; see `budgets.features`."""

    @abstractmethod
    def choose(self, features: Mapping[str, float]) -> int:
        """Return K_q, one of `budgets`.

        Args:
            features: of the query, at least those named by `self.features`; what `features_of` returns.

        Raises:
            ValueError: a feature is missing.
        """


def feature_value(features: Mapping[str, float], name: str) -> float:
    """Return one feature, or raise `ValueError` that says how to come by it."""
    if name not in features:
        raise ValueError(
            f"the selector needs the query feature '{name}': give features_of the query what it is made of"
        )
    return features[name]

"""What chooses a query's budget before the query is encoded: one K_q for all, a rule of the length, or what was fitted.

A new selector is a subclass of `Selector` and a line in `open_selector`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from diffretriever.budgets.features import check_names
from diffretriever.files import is_file, read_model
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.selector import LearnedSelectorArtefact

DEFAULT_BUDGETS = (1, 2, 4, 8, 16)
"""K_q that the rule chooses from where nobody says which."""

# The paper's two ends of the best K_q by query length (Fig. 7), and our slope between them.
_FEWEST, _MOST = 2.0, 8.0
_SUBWORDS_A_SLOT = 4.0


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


class FixedSelector(Selector):
    """Chooses one K_q always: what the paper deploys."""

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
        wanted = min(max(_feature_value(features, "length") / _SUBWORDS_A_SLOT, _FEWEST), _MOST)
        return min(self._budgets, key=lambda budget: (abs(math.log2(budget / wanted)), budget))


class LearnedSelector(Selector):
    """Chooses the budget whose predicted value, less what its slots cost, is highest: a fitted selector."""

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
            (min(max(_feature_value(features, f.name), f.low), f.high) - f.centre) / f.scale for f in artefact.features
        ]
        scores = {
            budget: intercept + sum(c * x for c, x in zip(row, standard, strict=True)) - artefact.cost * budget
            for budget, intercept, row in zip(artefact.budgets, artefact.intercepts, artefact.coefficients, strict=True)
        }
        return max(scores, key=lambda budget: (scores[budget], -budget))


def open_selector(source: str, fingerprint: str, budgets: Sequence[int] = DEFAULT_BUDGETS) -> Selector:
    """Return the selector that `source` names.

    Args:
        source: `fixed:4` for K_q = 4 always, `rule` for the default rule, or the file of a fitted selector.
        fingerprint: of the encoder that will encode the queries, as queries depend on it.
        budgets: K_q that the rule may choose.

    Raises:
        ValueError: no such selector or file, or one that was fitted for another encoder.
    """
    kind, _, number = source.partition(":")
    if kind == "fixed" and number.isascii() and number.isdecimal():
        return FixedSelector(int(number))
    if source == "rule":
        return RuleSelector(budgets)
    if not is_file(as_place(source)):
        raise ValueError(f"no selector '{source}': give 'rule', 'fixed:4' or the file that jobs/fit_selector.py wrote")
    artefact = load_artefact(as_place(source))
    if artefact.fingerprint != fingerprint:
        raise ValueError(
            f"{source} was fitted for encoder {artefact.fingerprint} ({artefact.retriever}), but {fingerprint} is to "
            "encode the queries: fit a selector on a sweep of this encoder"
        )
    return LearnedSelector(artefact)


def load_artefact(path: Path | StorePath) -> LearnedSelectorArtefact:
    """Read the JSON of a fitted selector.

    Raises:
        ValueError: it is malformed, or names a feature that does not exist; the message names the file.
    """
    artefact = read_model(path, LearnedSelectorArtefact, "give a selector that jobs/fit_selector.py has fitted")
    try:
        check_names(feature.name for feature in artefact.features)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return artefact


def _feature_value(features: Mapping[str, float], name: str) -> float:
    """Return one feature, or raise `ValueError` that says how to come by it."""
    if name not in features:
        raise ValueError(
            f"the selector needs the query feature '{name}': give features_of the query what it is made of"
        )
    return features[name]

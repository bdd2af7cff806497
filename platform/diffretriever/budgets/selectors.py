"""Selectors choose K_q before the query is encoded: fixed, by a rule of the length, or fitted.

A fitted selector is a ridge regression of each query's slope of values over log2 K_q, used only where it improves on
the best fixed budget. One slope per query fits less noise than a regression per budget.

Legend: A budgets, F features, Q queries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffretriever.budgets.features import check_names
from diffretriever.core.files import is_file, read_model
from diffretriever.core.progress import track
from diffretriever.schemas.locations import StorePath, parse_location
from diffretriever.schemas.selector import LearnedSelectorArtefact

DEFAULT_BUDGETS = (1, 2, 4, 8, 16)
"""Default budgets K_q of the rule."""

# The paper's two ends of the best K_q by query length (Fig. 7), and our slope between them.
_FEWEST, _MOST = 2.0, 8.0
_SUBWORDS_A_SLOT = 4.0

_FOLDS = 5
_SEED = 42
# Ridge penalties per query, on standardised features, from almost 0 to an almost flat slope.
_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
# A slope is used when its gain on queries it was not fitted on is this many standard errors above 0. Chance alone gets
# there in 4% of made-up sets of 150 queries without any signal.
_SURE = 2.0


class Selector(ABC):
    """Chooses K_q from cheap features of a query."""

    name: str
    """For tables, such as `fixed:4`."""
    budgets: tuple[int, ...]
    """The K_q that it chooses from, ascending."""
    features: tuple[str, ...]
    """The names of the features that it needs; see `budgets.features`."""

    @abstractmethod
    def choose(self, features: Mapping[str, float]) -> int:
        """Return K_q, one of `budgets`; raises `ValueError` if a feature is missing."""


class FixedSelector(Selector):
    """Chooses one K_q always: the paper's deployment."""

    features = ()

    def __init__(self, budget: int) -> None:
        if budget < 1:
            raise ValueError(f"a query needs at least one slot, got {budget}")
        self.name, self.budgets = f"fixed:{budget}", (budget,)

    def choose(self, features: Mapping[str, float]) -> int:
        """Return the one K_q."""
        return self.budgets[0]


class RuleSelector(Selector):
    """A slot for every four subwords, between 2 and 8.

    The paper gives the ends: the best K_q rises "from approximately 2 for the shortest queries to approximately 8
    for the longest". The slope in between is ours. Takes the nearest allowed budget by ratio; ties take the smaller.
    """

    name, features = "rule", ("length",)

    def __init__(self, budgets: Sequence[int] = DEFAULT_BUDGETS) -> None:
        """Choose among `budgets`, at least one; raises `ValueError` for less."""
        if not budgets or min(budgets) < 1:
            raise ValueError(f"budgets {list(budgets)}: give the allowed K_q, each at least 1")
        self.budgets = tuple(sorted(set(budgets)))

    def choose(self, features: Mapping[str, float]) -> int:
        """Return the allowed K_q nearest to a quarter of the length, clipped to 2..8."""
        wanted = min(max(_feature_value(features, "length") / _SUBWORDS_A_SLOT, _FEWEST), _MOST)
        return min(self.budgets, key=lambda budget: (abs(math.log2(budget / wanted)), budget))


class LearnedSelector(Selector):
    """A fitted selector: maximises predicted value minus the cost of slots."""

    def __init__(self, artefact: LearnedSelectorArtefact) -> None:
        self.name, self.budgets = f"learned λ={artefact.cost:g}", artefact.budgets
        self.features = tuple(feature.name for feature in artefact.features)
        ends = [(f.centre, f.scale, f.low, f.high) for f in artefact.features]
        centre_F, scale_F, low_F, high_F = np.array(ends, np.float64).reshape(-1, 4).T
        self._model = LinearModel(
            budgets=artefact.budgets,
            intercepts_A=np.array(artefact.intercepts),
            coefficients_AF=np.array(artefact.coefficients),
            centre_F=centre_F,
            scale_F=scale_F,
            low_F=low_F,
            high_F=high_F,
            cost=artefact.cost,
            penalty=artefact.penalty,
        )

    def choose(self, features: Mapping[str, float]) -> int:
        """Return the K_q with the highest predicted value minus λ·K_q; ties take the smallest.

        Features are clipped to the range of the training queries.
        """
        row_F = np.array([_feature_value(features, name) for name in self.features])
        return self.budgets[int(self._model.choose(row_F[None])[0])]


def open_selector(source: str, fingerprint: str, budgets: Sequence[int] = DEFAULT_BUDGETS) -> Selector:
    """Return the selector that `source` names.

    Args:
        source: `fixed:4` for K_q = 4, `rule` for the default rule, or the file of a fitted selector.
        fingerprint: of the encoder of the queries.
        budgets: K_q that the rule may choose.

    Raises:
        ValueError: Unknown selector or file, or one that was fitted for another encoder.
    """
    kind, _, number = source.partition(":")
    if kind == "fixed" and number.isascii() and number.isdecimal():
        return FixedSelector(int(number))
    if source == "rule":
        return RuleSelector(budgets)
    if not is_file(parse_location(source)):
        raise ValueError(f"no selector '{source}': give 'rule', 'fixed:4' or the file that jobs/fit_selector.py wrote")
    artefact = load_artefact(parse_location(source))
    if artefact.fingerprint != fingerprint:
        raise ValueError(
            f"{source} was fitted for encoder {artefact.fingerprint} ({artefact.retriever}), but {fingerprint} is to "
            "encode the queries: fit a selector on a sweep of this encoder"
        )
    return LearnedSelector(artefact)


def load_artefact(path: Path | StorePath) -> LearnedSelectorArtefact:
    """Read a fitted selector's JSON; raises `ValueError` for a malformed file or unknown feature."""
    artefact = read_model(path, LearnedSelectorArtefact, "give a selector that jobs/fit_selector.py has fitted")
    try:
        check_names(feature.name for feature in artefact.features)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return artefact


def _feature_value(features: Mapping[str, float], name: str) -> float:
    if name not in features:
        raise ValueError(
            f"the selector needs the query feature '{name}': give features_of the query what it is made of"
        )
    return features[name]


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """Predicted values of A budgets: `intercepts_A + coefficients_AF @ standardised features`; all float64."""

    budgets: tuple[int, ...]
    intercepts_A: np.ndarray
    """Mean values."""
    coefficients_AF: np.ndarray
    centre_F: np.ndarray
    scale_F: np.ndarray
    """1 for a feature that does not vary."""
    low_F: np.ndarray
    high_F: np.ndarray
    cost: float
    """λ, taken off per slot."""
    penalty: float | None
    """Ridge penalty per query; None if all coefficients are 0."""

    def choose(self, features_QF: np.ndarray) -> np.ndarray:
        """Return the position of each query's budget, int64 [Q]; ties take the smallest."""
        standard_QF = (np.clip(features_QF, self.low_F, self.high_F) - self.centre_F) / self.scale_F
        scores_QA = self.intercepts_A + standard_QF @ self.coefficients_AF.T - self.cost * np.array(self.budgets)
        return scores_QA.argmax(axis=1)


def fit(features_QF: np.ndarray, values_AQ: np.ndarray, budgets: Sequence[int], cost: float) -> LinearModel:
    """Fit a selector; falls back to the best fixed budget unless features clearly improve on it.

    Cross-validation measures each penalty's gain, in value minus λ·K_q, over the best fixed budget. The best penalty is
    used if its gain exceeds two standard errors. Otherwise all coefficients are 0.

    Args:
        features_QF: float64 [Q, F], finite.
        values_AQ: float64 [A, Q], larger is better.
        budgets: A numbers K_q, ascending.
        cost: λ, at least 0, in units of the value per slot.
    """
    gains = {
        penalty: _held_out_gains(features_QF, values_AQ, budgets, cost, penalty)
        for penalty in track(_PENALTIES, "fitting", "penalties")
    }
    # Of penalties that gain alike the largest: the least said.
    best = max(reversed(_PENALTIES), key=lambda penalty: float(gains[penalty].mean()))
    return _fit(features_QF, values_AQ, budgets, cost, best if _is_sure(gains[best]) else None)


def _is_sure(gains_Q: np.ndarray) -> bool:
    return float(gains_Q.mean()) > _SURE * float(gains_Q.std(ddof=min(1, len(gains_Q) - 1))) / np.sqrt(len(gains_Q))


def _held_out_gains(
    features_QF: np.ndarray, values_AQ: np.ndarray, budgets: Sequence[int], cost: float, penalty: float
) -> np.ndarray:
    """Return each query's gain by a selector fitted on other queries, float64 [Q]."""
    worth_AQ = values_AQ - cost * np.array(budgets)[:, None]
    gains_Q = np.empty(values_AQ.shape[1])
    for training, test in folds(len(gains_Q)):
        model = _fit(features_QF[training], values_AQ[:, training], budgets, cost, penalty)
        fixed = worth_AQ[:, training].mean(axis=1).argmax()
        gains_Q[test] = worth_AQ[model.choose(features_QF[test]), test] - worth_AQ[fixed, test]
    return gains_Q


def _fit(
    features_QF: np.ndarray, values_AQ: np.ndarray, budgets: Sequence[int], cost: float, penalty: float | None
) -> LinearModel:
    centre_F, spread_F = features_QF.mean(axis=0), features_QF.std(axis=0)
    scale_F = np.where(spread_F > 0, spread_F, 1.0)
    means_A = values_AQ.mean(axis=1)
    n_queries, n_features = features_QF.shape
    coefficients_AF = np.zeros((len(budgets), n_features))
    if penalty is not None:
        standard_QF = (features_QF - centre_F) / scale_F
        # A query's difficulty is the same for all budgets, so it is subtracted.
        gains_AQ = values_AQ - values_AQ.mean(axis=0)
        gram_FF = standard_QF.T @ standard_QF + penalty * n_queries * np.eye(n_features)
        slopes_A = np.log2(budgets) - np.log2(budgets).mean()
        wanted_Q = slopes_A @ gains_AQ / max(float(slopes_A @ slopes_A), 1e-12)
        coefficients_AF = np.outer(slopes_A, np.linalg.solve(gram_FF, standard_QF.T @ wanted_Q))
    return LinearModel(
        budgets=tuple(budgets),
        intercepts_A=means_A,
        coefficients_AF=coefficients_AF,
        centre_F=centre_F,
        scale_F=scale_F,
        low_F=features_QF.min(axis=0),
        high_F=features_QF.max(axis=0),
        cost=cost,
        penalty=penalty,
    )


def folds(n_queries: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield five (training, test) splits as int64 positions, with a fixed seed."""
    if n_queries == 1:
        yield np.zeros(1, np.int64), np.zeros(1, np.int64)
        return
    shuffled_Q = np.random.default_rng(_SEED).permutation(n_queries)
    parts = np.array_split(shuffled_Q, min(_FOLDS, n_queries))
    for number, test in enumerate(parts):
        yield np.sort(np.concatenate(parts[:number] + parts[number + 1 :])), np.sort(test)

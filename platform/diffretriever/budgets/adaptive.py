"""What a selector gains on queries that it was not fitted on: across folds of the queries, and across data sets.

Legend: A query budgets, F features, Q queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffretriever.budgets.fit import fit
from diffretriever.budgets.folds import folds
from diffretriever.budgets.oracles import oracle
from diffretriever.budgets.outcomes import Outcomes
from diffretriever.budgets.selectors.base import Selector
from diffretriever.statistics.intervals import bootstrap_interval
from diffretriever.statistics.significance import randomisation_p, t_test_p
from schemas.budget import Budget
from schemas.selector import AdaptiveRow


@dataclass(frozen=True, slots=True, eq=False)
class QuerySet:
    """Queries with their features and what each budget gives them.

    Attributes:
        name: such as `scifact/test`.
        names: of the F features.
        features_QF: float64 [Q, F].
        outcomes: of one mode and measure.
        passage_budget: K_p of the index that is searched.
    """

    name: str
    names: tuple[str, ...]
    features_QF: np.ndarray
    outcomes: Outcomes
    passage_budget: int

    @property
    def values_AQ(self) -> np.ndarray:  # noqa: N802 (a tensor)
        """Values at the passage budget, float64 [A, Q]."""
        return self.outcomes.values_ABQ[:, self.outcomes.passage_budgets.index(self.passage_budget)]


def joined(sets: Sequence[QuerySet]) -> QuerySet:
    """Return all queries as one set named `all`; every query counts the same, so large sets count for more."""
    first = sets[0]
    queries = tuple(f"{s.name}/{query}" for s in sets for query in s.outcomes.queries)
    values_ABQ = np.concatenate([s.outcomes.values_ABQ for s in sets], axis=2)
    return replace(
        first,
        name="all",
        features_QF=np.concatenate([s.features_QF for s in sets]),
        outcomes=replace(first.outcomes, queries=queries, values_ABQ=values_ABQ),
    )


def across_folds(queries: QuerySet, cost: float) -> AdaptiveRow:
    """Evaluate a learned selector by five-fold cross-validation: each query is chosen for by a fit on other folds."""
    values_AQ, budgets = queries.values_AQ, queries.outcomes.query_budgets
    chosen_Q = np.empty(values_AQ.shape[1], np.int64)
    for training, test in folds(len(chosen_Q)):
        model = fit(queries.features_QF[training], values_AQ[:, training], budgets, cost)
        chosen_Q[test] = model.choose(queries.features_QF[test])
    return _row(_Choice(f"learned λ={cost:g}", cost, "folds", chosen_Q), queries, None)


def across_sets(source: QuerySet, target: QuerySet, cost: float) -> AdaptiveRow:
    """Evaluate on `target` a selector learned on all of `source`, against the fixed budget best on `source`."""
    model = fit(source.features_QF, source.values_AQ, source.outcomes.query_budgets, cost)
    chosen_Q = model.choose(target.features_QF)
    return _row(_Choice(f"learned λ={cost:g}", cost, source.name, chosen_Q), target, source)


def as_given(selector: Selector, queries: QuerySet) -> AdaptiveRow:
    """Evaluate a selector that was fitted on nothing, such as the default rule.

    Raises:
        ValueError: it chooses a budget that was not swept, or wants a feature that is not in the set.
    """
    budgets = queries.outcomes.query_budgets
    chosen = [selector.choose(dict(zip(queries.names, row, strict=True))) for row in queries.features_QF.tolist()]
    unknown = sorted(set(chosen) - set(budgets))
    if unknown:
        raise ValueError(
            f"{selector.name} chose K_q = {unknown[0]}, which was not swept: {', '.join(map(str, budgets))}"
        )
    return _row(_Choice(selector.name, 0.0, "nothing", np.searchsorted(budgets, chosen)), queries, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """What a selector chose: int64 [Q] places among the budgets."""

    selector: str
    cost: float
    fitted_on: str
    chosen_Q: np.ndarray


def _row(choice: _Choice, queries: QuerySet, source: QuerySet | None) -> AdaptiveRow:
    """Set a choice beside fixed budgets, best on `source` or else on other folds, and the oracle."""
    chosen_Q = choice.chosen_Q
    budgets_A = np.array(queries.outcomes.query_budgets)
    values_AQ, everyone = queries.values_AQ, np.arange(len(chosen_Q))
    mean_budget = float(budgets_A[chosen_Q].mean())
    fixed_Q = _best_fixed(queries, source, len(budgets_A))
    frugal_Q = _best_fixed(queries, source, int((budgets_A <= mean_budget).sum()))
    selected, fixed, frugal = (values_AQ[places_Q, everyone] for places_Q in (chosen_Q, fixed_Q, frugal_Q))
    usual = Budget(int(budgets_A[np.bincount(fixed_Q).argmax()]), queries.passage_budget)
    limits = oracle(queries.outcomes, usual, "query")
    gain, headroom = float((selected - fixed).mean()), float((limits.best_Q - fixed).mean())
    carried = None if limits.carried_Q is None else float((limits.carried_Q - fixed).mean())
    counts_A = np.bincount(chosen_Q, minlength=len(budgets_A))
    return AdaptiveRow(
        selector=choice.selector,
        cost=choice.cost,
        fitted_on=choice.fitted_on,
        tested_on=queries.name,
        queries=len(chosen_Q),
        mean=float(selected.mean()),
        mean_budget=mean_budget,
        budgets=dict(zip(budgets_A.tolist(), (counts_A / len(chosen_Q)).tolist(), strict=True)),
        fixed=float(fixed.mean()),
        fixed_budget=float(budgets_A[fixed_Q].mean()),
        gain=gain,
        interval=bootstrap_interval(selected - fixed),
        t_test=t_test_p(selected - fixed),
        randomisation=randomisation_p(selected - fixed),
        frugal=float(frugal.mean()),
        frugal_gain=float((selected - frugal).mean()),
        frugal_t_test=t_test_p(selected - frugal),
        headroom=headroom,
        carried=carried,
        recovered=gain / headroom if headroom > 0 else None,
        recovered_carried=gain / carried if carried is not None and carried > 0 else None,
    )


def _best_fixed(queries: QuerySet, source: QuerySet | None, n_allowed: int) -> np.ndarray:
    """Return the place of the best of the first budgets, int64 [Q]: best on the source, or else on the other folds."""
    places_Q = np.empty(len(queries.outcomes.queries), np.int64)
    if source is not None:
        places_Q[:] = source.values_AQ[:n_allowed].mean(axis=1).argmax()
        return places_Q
    for training, test in folds(len(places_Q)):
        places_Q[test] = queries.values_AQ[:n_allowed, training].mean(axis=1).argmax()
    return places_Q

"""From sweeps on disk to a selector of query budgets.

Legend: A query budgets, B passage budgets, F features, Q queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from diffretriever.budgets.features import FEATURES, check_names
from diffretriever.budgets.selectors import fit
from diffretriever.schemas.selector import FitSelectorJob, FittedFeature, LearnedSelectorArtefact
from diffretriever.studies.budgets.sweep_files import Outcomes, SweptSplit


@dataclass(frozen=True, slots=True, eq=False)
class QuerySet:
    """Queries with their features, float64 [Q, F], and their outcomes under each budget."""

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


def query_sets(job: FitSelectorJob, splits: list[SweptSplit]) -> list[QuerySet]:
    """Return the queries of each split with the job's features; raise `ValueError` if a sweep lacks one of them."""
    check_names(job.features)
    late = next((name for name in job.features if FEATURES[name].needs_slots), None)
    if late is not None:
        raise ValueError(
            f"the feature '{late}' takes a pass of the encoder, and a selector chooses before it: leave it out"
        )
    outcomes = [Outcomes.read(split.folder, split.split, job.mode, job.measure) for split in splits]
    k_p = _best_passage_budget(outcomes)
    return [
        QuerySet(split.name, job.features, split.features(found.queries, job.features), found, k_p)
        for split, found in zip(splits, outcomes, strict=True)
    ]


def _best_passage_budget(outcomes: list[Outcomes]) -> int:
    first = outcomes[0]
    values_ABQ = np.concatenate([found.values_ABQ for found in outcomes], axis=2)
    queries = tuple(map(str, range(values_ABQ.shape[2])))
    return Outcomes(queries, first.query_budgets, first.passage_budgets, values_ABQ).best().passage


def fit_selector(
    job: FitSelectorJob, splits: list[SweptSplit], everything: QuerySet, command: str
) -> LearnedSelectorArtefact:
    """Fit a selector on queries of all splits; only its `created` depends on when that is."""
    model = fit(everything.features_QF, everything.values_AQ, everything.outcomes.query_budgets, job.cost)
    manifest = splits[0].manifest
    return LearnedSelectorArtefact(
        fingerprint=manifest.fingerprint,
        retriever=manifest.retriever,
        collections=tuple(split.name for split in splits),
        mode=job.mode,
        measure=job.measure,
        passage_budget=everything.passage_budget,
        queries=len(everything.outcomes.queries),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        cost=model.cost,
        penalty=model.penalty,
        budgets=model.budgets,
        features=tuple(map(_fitted, everything.names, model.low_F, model.high_F, model.centre_F, model.scale_F)),
        intercepts=tuple(model.intercepts_A.tolist()),
        coefficients=tuple(map(tuple, model.coefficients_AF.tolist())),
    )


def _fitted(name: str, low: float, high: float, centre: float, scale: float) -> FittedFeature:
    return FittedFeature(name=name, low=float(low), high=float(high), centre=float(centre), scale=float(scale))

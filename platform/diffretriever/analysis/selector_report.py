"""From sweeps on disk to a fitted selector, `fitted_selector.json`, and its report."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from diffretriever.analysis.selector_figure import draw_curve
from diffretriever.analysis.selector_page import selector_page
from diffretriever.analysis.swept_features import query_features
from diffretriever.budgets.adaptive import QuerySet, across_folds, across_sets, as_given, joined
from diffretriever.budgets.features import FEATURES, check_names
from diffretriever.budgets.fit import LinearModel, fit
from diffretriever.budgets.outcomes import Outcomes
from diffretriever.budgets.selectors import RuleSelector
from diffretriever.budgets.splits import SweptSplit, open_splits
from diffretriever.files import write_bytes, write_text
from schemas.selector import AdaptiveRow, FitSelectorJob, FittedFeature, FittedSelectorReport, LearnedSelectorArtefact

FITTED_SELECTOR_FILE = "fitted_selector.json"


def fit_selector(job: FitSelectorJob, command: str) -> FittedSelectorReport:
    """Fit on all queries of all sweeps, evaluate across folds and across sets, and write the job's output folder.

    Only `created` in fitted_selector.json depends on when that is.

    Raises:
        ValueError: sweeps that do not belong together, or lack the mode, the measure, a budget or a feature.
    """
    splits = open_splits(job.sweeps)
    sets = _query_sets(job, splits)
    everything = joined(sets) if len(sets) > 1 else sets[0]
    artefact = _artefact(job, splits, everything, command)
    rule = _rule(everything)
    manifest = splits[0].manifest
    report = FittedSelectorReport(
        retriever=manifest.retriever,
        fingerprint=manifest.fingerprint,
        mode=job.mode,
        measure=job.measure,
        passage_budget=everything.passage_budget,
        rows=tuple(_rows(sets, everything, job.cost)),
        curve=tuple(across_folds(everything, cost) for cost in job.curve),
        command=command,
    )
    budgets = everything.outcomes.query_budgets
    fixed = dict(zip(budgets, everything.values_AQ.mean(axis=1).tolist(), strict=True))
    write_bytes(job.output / "curve.png", draw_curve(report, fixed, rule))
    write_text(job.output / "report.json", report.model_dump_json(indent=2) + "\n")
    write_text(job.output / "report.md", selector_page(report, artefact, fixed))
    write_text(job.output / "fit_selector.yaml", job.to_yaml())
    write_text(job.output / FITTED_SELECTOR_FILE, artefact.model_dump_json(indent=2) + "\n")
    return report


def _query_sets(job: FitSelectorJob, splits: list[SweptSplit]) -> list[QuerySet]:
    check_names(job.features)
    late = next((name for name in job.features if FEATURES[name].needs_pass), None)
    if late is not None:
        raise ValueError(
            f"the feature '{late}' takes a pass of the encoder, and a selector chooses before it: leave it out"
        )
    outcomes = [_allowed(split.outcomes(job.mode, job.measure), job) for split in splits]
    k_p = job.passage_budget or _best_passage_budget(outcomes)
    if k_p not in outcomes[0].passage_budgets:
        raise ValueError(f"--passage-budget {k_p} was not swept: {', '.join(map(str, outcomes[0].passage_budgets))}")
    return [
        QuerySet(split.name, job.features, query_features(split, found.queries, job.features), found, k_p)
        for split, found in zip(splits, outcomes, strict=True)
    ]


def _best_passage_budget(outcomes: list[Outcomes]) -> int:
    """Return the K_p of the cell with the best mean over all queries."""
    first = outcomes[0]
    values_ABQ = np.concatenate([found.values_ABQ for found in outcomes], axis=2)
    queries = tuple(map(str, range(values_ABQ.shape[2])))
    return Outcomes(queries, first.query_budgets, first.passage_budgets, values_ABQ).best().passage


def _allowed(outcomes: Outcomes, job: FitSelectorJob) -> Outcomes:
    """Leave out the query budgets that the job does not allow."""
    if not job.budgets:
        return outcomes
    unknown = sorted(set(job.budgets) - set(outcomes.query_budgets))
    if unknown:
        swept = ", ".join(map(str, outcomes.query_budgets))
        raise ValueError(f"--budgets {unknown[0]} was not swept: K_q is one of {swept}")
    places = [a for a, budget in enumerate(outcomes.query_budgets) if budget in job.budgets]
    kept = tuple(outcomes.query_budgets[a] for a in places)
    return Outcomes(outcomes.queries, kept, outcomes.passage_budgets, outcomes.values_ABQ[places])


def _rows(sets: list[QuerySet], everything: QuerySet, cost: float) -> list[AdaptiveRow]:
    """Return the default rule and the learned selector on each set, then the latter from each set to each other."""
    tested = [*sets, everything] if len(sets) > 1 else sets
    rules = [rule for queries in tested if (rule := _rule(queries)) is not None]
    folded = [across_folds(queries, cost) for queries in tested]
    crossed = [across_sets(source, target, cost) for source in sets for target in sets if source is not target]
    return [*rules, *folded, *crossed]


def _rule(queries: QuerySet) -> AdaptiveRow | None:
    """Evaluate the default rule, where the features that it looks at are there."""
    selector = RuleSelector(queries.outcomes.query_budgets)
    return as_given(selector, queries) if set(selector.features) <= set(queries.names) else None


def _artefact(
    job: FitSelectorJob, splits: list[SweptSplit], everything: QuerySet, command: str
) -> LearnedSelectorArtefact:
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
        features=_fitted_features(everything.names, model),
        intercepts=tuple(model.intercepts_A.tolist()),
        coefficients=tuple(map(tuple, model.coefficients_AF.tolist())),
    )


def _fitted_features(names: tuple[str, ...], model: LinearModel) -> tuple[FittedFeature, ...]:
    columns = zip(
        names,
        model.low_F.tolist(),
        model.high_F.tolist(),
        model.centre_F.tolist(),
        model.scale_F.tolist(),
        strict=True,
    )
    return tuple(
        FittedFeature(name=name, low=low, high=high, centre=centre, scale=scale)
        for name, low, high, centre, scale in columns
    )

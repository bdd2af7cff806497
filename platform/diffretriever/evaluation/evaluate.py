"""Evaluates an index on a collection's queries, or finished runs: writes runs, measures and a report."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from diffretriever.collections import Collection, Qrels, Query, Run, open_collection, read_qrels, write_run
from diffretriever.collections.chunks import first_chunk
from diffretriever.core.files import write_text
from diffretriever.core.progress import track
from diffretriever.evaluation.conditions import (
    conditions_of,
    conditions_of_run,
    coverage_of,
    milliseconds_of,
    truncation_of,
    warnings_of,
)
from diffretriever.evaluation.exclusion import settled_by_index, settled_by_runs
from diffretriever.evaluation.fused import FinishedRuns, check_disjoint, read_runs, shares
from diffretriever.evaluation.measures import (
    EvaluationResult,
    evaluate,
    measures_of,
    overlap_of,
    parse_measures,
    relevant_in,
)
from diffretriever.evaluation.report import evaluation_report, index_facts, write_evaluation
from diffretriever.presets import in_tag, system_name
from diffretriever.schemas.evaluate import Conditions, EvaluateJob, Judgements
from diffretriever.schemas.fusion import Fusion, named_runs
from diffretriever.schemas.mode import Mode
from diffretriever.search import open_searcher
from diffretriever.search.batch import kept_hits, searched_depth
from diffretriever.search.searcher import Searcher
from diffretriever.search.selecting import BudgetChooser, Choice

_LOG = logging.getLogger(__name__)


def evaluate_job(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    """Run an evaluate job and write its files; return results by mode, run or fusion.

    Raises:
        ValueError: Unknown index, collection, split or measure, a malformed run, or a warning if the job is strict.
            Nothing has been written then.
    """
    parse_measures(job.measures)
    return _evaluate_runs(job, command) if job.runs else _evaluate_index(job, command)


def with_measures(job: EvaluateJob, collection: str | None) -> EvaluateJob:
    """Return the job with its own measures, or the defaults of the collection and split."""
    return job.model_copy(update={"measures": job.measures or measures_of(collection, job.split)})


def _evaluate_index(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    assert job.collection is not None, "the config has checked this"
    collection = open_collection(job.collection)
    job = with_measures(job, collection.name)
    searcher = open_searcher(job.index, job.search_options)
    queries = collection.queries(job.split)
    chooser = BudgetChooser(job.selector, searcher.index, searcher.preparer) if job.selector else None
    choices = chooser.choose([query.text for query in queries]) if chooser else []
    searched = search_collection(searcher, collection, job, [choice.budget for choice in choices] or None)
    job = searched.job
    warnings = searched.warnings(job.index)
    refuse_warnings(job, warnings)
    runs = track(searched.runs.items(), "measuring", "runs")
    results = {str(mode): evaluate(run, searched.qrels, job.measures) for mode, run in runs}
    system = system_name(searcher.index.manifest, chooser.selector.name if chooser else job.query_budget)
    for mode, run in track(searched.runs.items(), "writing runs", "runs"):
        write_run(job.output / f"{mode}.trec", [run], f"{system}.{mode}")
    facts = {
        **index_facts(searcher.index, job),
        "collection": collection.name,
        "conditions": searched.conditions,
        "notes": searched.notes,
        "selector": _chosen(chooser, choices) if chooser else None,
    }
    _write(job, command, results, warnings, facts, {query.id: query.text for query in queries})
    return results


@dataclass(frozen=True)
class Searched:
    """The rankings of an index for the queries of a collection."""

    job: EvaluateJob
    """With self-exclusion set."""
    runs: dict[Mode, Run]
    qrels: Qrels
    conditions: dict[Mode, Conditions]
    notes: tuple[str, ...]
    """A sentence, if most queries are passages of the index and so left out of their own results."""

    def warnings(self, name: str) -> list[str]:
        """Return the reasons to doubt the measures, such as missing passages; they call the index `name`."""
        rows = {name if len(self.runs) == 1 else f"{name} {mode}": one for mode, one in self.conditions.items()}
        return warnings_of(rows, len(self.qrels))


def search_collection(
    searcher: Searcher, collection: Collection, job: EvaluateJob, budgets: list[int] | None = None
) -> Searched:
    """Search an index for the queries of its collection; `budgets` as for `search_queries`.

    Raises:
        ValueError: The index contains no relevant passage, or as the searcher does.
    """
    queries, qrels = collection.queries(job.split), collection.qrels(job.split)
    index, relevant = searcher.index, relevant_in(qrels)
    judged = relevant if job.documents is None else [*relevant, *map(first_chunk, relevant)]
    if relevant and not (index.order.passages.numbers_of(judged) >= 0).any():
        raise ValueError(
            f"{index.uri} holds none of the passages that {collection.name} judges relevant: take its index; "
            'if it has chunks, rank documents by --documents max (in Python documents="max")'
        )
    known = {"coverage": coverage_of(index, collection, qrels), **truncation_of(searcher)}
    job, notes = settled_by_index(job, index, queries, qrels)
    runs = search_queries(searcher, queries, job, budgets)
    budgets = budgets or _budgets(job, queries)
    texts = [query.text for query in queries]
    options = {"filter": job.filter, "documents": job.documents}
    conditions = {
        mode: conditions_of(
            searcher,
            mode,
            job,
            budgets,
            overlap=overlap_of(run, qrels),
            milliseconds=milliseconds_of(searcher, mode, texts, budgets, **options),
            **known,
        )
        for mode, run in runs.items()
    }
    return Searched(job, runs, qrels, conditions, notes)


def search_queries(
    searcher: Searcher, queries: list[Query], job: EvaluateJob, budgets: list[int] | None = None
) -> dict[Mode, Run]:
    """Return the run of each mode; if the job excludes them, without the queries' own documents.

    `budgets` is each query's K_q; None: the job's or the retriever's.

    Raises:
        ValueError: As the searcher does.
    """
    budgets = budgets or _budgets(job, queries)
    depth = searched_depth(job.top_k, exclude_self=job.drops_self)
    modes = tuple(dict.fromkeys(job.modes)) or None
    texts = [query.text for query in queries]
    hits_by_mode = searcher.search(
        texts, k=depth, modes=modes, budgets=budgets, filter=job.filter, documents=job.documents
    )
    ids = [query.id for query in queries]
    return {
        mode: Run(ids, kept_hits(ids, hits, job.top_k, exclude_self=job.drops_self))
        for mode, hits in hits_by_mode.items()
    }


def _budgets(job: EvaluateJob, queries: Sequence[Query]) -> list[int] | None:
    return [job.query_budget] * len(queries) if job.query_budget else None


def refuse_warnings(job: Judgements, warnings: Sequence[str]) -> None:
    """Raise `ValueError` if there are warnings and the job is strict."""
    if job.strict and warnings:
        raise ValueError(f"--strict: {'; '.join(warnings)}")


def _chosen(chooser: BudgetChooser, choices: Sequence[Choice]) -> str:
    counts = Counter(choice.budget for choice in choices)
    budgets = ", ".join(f"{budget} for {count / len(choices):.1%}" for budget, count in sorted(counts.items()))
    return f"{chooser.selector.name}: mean K_q {mean(counts.elements()):.2f} ({budgets})"


def _evaluate_runs(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    if job.qrels is not None:
        name, qrels = None, read_qrels(job.qrels)
    else:
        assert job.collection is not None, "the config has checked this"
        collection = open_collection(job.collection)
        name, qrels = collection.name, collection.qrels(job.split)
    job = with_measures(job, name)
    paths = named_runs(job.runs, "--runs")
    job, kept, notes = settled_by_runs(job, read_runs(paths), qrels)
    runs = FinishedRuns.of(kept, qrels)
    single = {name: runs.single(name) for name in runs.names}
    weights = _weights(job, runs.names, qrels) if len(runs.names) > 1 else {}
    fused = {by: runs.fused(by, shares, job.top_k) for by, shares in weights.items()}
    measured = track([*single.items(), *fused.items()], "measuring", "runs")
    results = {str(name): evaluate(run, qrels, job.measures) for name, run in measured}
    conditions = {name: conditions_of_run(paths[name], overlap_of(run, qrels)) for name, run in single.items()}
    warnings = warnings_of(conditions, len(qrels))
    refuse_warnings(job, warnings)
    for by, run in track(fused.items(), "writing runs", "runs"):
        write_run(job.output / f"{by}.trec", [run], f"{in_tag('+'.join(runs.names))}.{by}")
    facts = {
        "retriever": " + ".join(runs.names),
        "config": job.model_dump(mode="json"),
        "collection": job.collection,
        "split": job.split if job.qrels is None else None,
        "weights": weights,
        "conditions": conditions,
        "notes": notes,
    }
    _write(job, command, results, warnings, facts, {})
    return results


def _weights(job: EvaluateJob, names: Sequence[str], reported: Qrels) -> dict[Fusion, dict[str, float]]:
    if job.tune_qrels is None:
        return dict.fromkeys(job.fusions, shares(names, job.weights))
    qrels = read_qrels(job.tune_qrels)
    check_disjoint(reported, qrels)
    paths = named_runs(job.tune_runs, "--tune-runs")
    tuned = read_runs({name: paths[name] for name in names})
    runs = FinishedRuns.of(settled_by_runs(job, tuned, qrels)[1], qrels)
    return {by: runs.tuned(qrels, by, job.measures[0]) for by in job.fusions}


def _write(
    job: EvaluateJob,
    command: str,
    results: dict[str, EvaluationResult],
    warnings: Sequence[str],
    facts: dict[str, Any],
    query_texts: dict[str, str],
) -> None:
    for warning in warnings:
        _LOG.warning("warning: %s", warning)
    for note in facts["notes"]:
        _LOG.warning("note: %s", note)
    report = evaluation_report(results, command=command, warnings=warnings, **facts)
    write_evaluation(job.output, report, results, query_texts)
    write_text(job.output / "evaluate.yaml", job.to_yaml())

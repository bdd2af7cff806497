"""From an index and a collection's queries, or from a finished run, to runs, measures and a report on disk."""

from __future__ import annotations

from collections.abc import Mapping

from diffretriever.collections import Qrels, Query, Run, open_collection, read_qrels, read_run, write_run
from diffretriever.evaluation.measures import EvaluationResult, evaluate, parse_measures, remove_self
from diffretriever.evaluation.report import Evaluation, write_evaluation
from diffretriever.files import write_text
from diffretriever.scoring.topk import Hits
from diffretriever.search import open_searcher
from diffretriever.search.base import Searcher
from schemas.jobs import EvaluateJob


def evaluate_job(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    """Run an evaluate job and write its files; returns the results by mode (`run` for a finished run).

    Raises:
        ValueError: no such index, collection, split or measure, or a malformed run; nothing has been written then.
    """
    parse_measures(job.measures)
    return _evaluate_run(job, command) if job.run is not None else _evaluate_index(job, command)


def _evaluate_index(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    assert job.collection is not None, "the config has checked this"
    collection = open_collection(job.collection)
    queries, qrels = collection.queries(job.split), collection.qrels(job.split)
    searcher = open_searcher(job.index, job)
    runs = search_queries(searcher, queries, job)
    results = {mode: evaluate(_as_run(run), qrels, job.measures) for mode, run in runs.items()}
    for mode, run in runs.items():
        write_run(job.output / f"{mode}.trec", run.items(), mode)
    manifest = searcher.index.manifest
    evaluation = Evaluation(
        retriever=manifest.title,
        command=command,
        config={**job.model_dump(mode="json"), "retriever": manifest.retriever.model_dump(mode="json")},
        collection=collection.name,
        split=job.split,
        fingerprint=manifest.fingerprint,
        rows=len(searcher.index),
        query_texts={query.id: query.text for query in queries},
    )
    _write(job, evaluation, results)
    return results


def search_queries(
    searcher: Searcher, queries: list[Query], job: EvaluateJob
) -> dict[str, dict[str, list[tuple[str, float]]]]:
    """Return, per mode, each query's ranked passages, its own document left out where the job says so."""
    budgets = [job.query_budget] * len(queries) if job.query_budget else None
    # One more than asked, since a query's own document may have to go.
    depth = job.top_k + job.exclude_self
    found = searcher.search([query.text for query in queries], top_k=depth, budgets=budgets)
    return {mode: _by_query(queries, hits, job) for mode, hits in found.items()}


def _by_query(queries: list[Query], hits: Hits, job: EvaluateJob) -> dict[str, list[tuple[str, float]]]:
    ranked = {}
    for query, found in zip(queries, hits, strict=True):
        kept = [hit for hit in found if not (job.exclude_self and hit[0] == query.id)]
        ranked[query.id] = kept[: job.top_k]
    return ranked


def _evaluate_run(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    assert job.run is not None, "the caller has checked this"
    run: Run = read_run(job.run)
    qrels = _qrels(job)
    if job.exclude_self:
        run = remove_self(run)
    results = {"run": evaluate(run, qrels, job.measures)}
    evaluation = Evaluation(
        retriever=job.run.name, command=command, config=job.model_dump(mode="json"), collection=job.collection
    )
    _write(job, evaluation, results)
    return results


def _qrels(job: EvaluateJob) -> Qrels:
    if job.qrels is not None:
        return read_qrels(job.qrels)
    assert job.collection is not None, "the config has checked this"
    return open_collection(job.collection).qrels(job.split)


def _as_run(ranked: Mapping[str, list[tuple[str, float]]]) -> Run:
    return {query: dict(hits) for query, hits in ranked.items()}


def _write(job: EvaluateJob, evaluation: Evaluation, results: dict[str, EvaluationResult]) -> None:
    write_evaluation(job.output, evaluation, results)
    write_text(job.output / "evaluate.yaml", job.to_yaml())

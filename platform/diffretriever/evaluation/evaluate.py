"""From an index and a collection's queries, or from a finished run, to runs, measures and a report on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diffretriever.collections import Qrels, Query, Run, open_collection, read_qrels, read_run, write_run
from diffretriever.evaluation.measures import EvaluationResult, evaluate, parse_measures, remove_self
from diffretriever.evaluation.report import Evaluation, write_evaluation
from diffretriever.evaluation.selecting import report_selector, selector_section
from diffretriever.files import write_text
from diffretriever.scoring.topk import Hits
from diffretriever.search import open_searcher
from diffretriever.search.base import Searcher
from diffretriever.search.cut import kept_hits, searched_depth
from diffretriever.search.neural import NeuralSearcher
from diffretriever.search.selecting import BudgetChooser
from schemas.jobs import EvaluateJob
from schemas.selection import SelectorReport

SELECTOR_FILE = "selector.json"


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
    texts = [query.text for query in queries]
    chooser = BudgetChooser.beside(searcher, job.selector) if job.selector else None
    choices = chooser.choose(texts) if chooser else []
    budgets = [choice.budget for choice in choices] if chooser else None
    runs = search_queries(searcher, queries, job, budgets)
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
    if chooser:
        assert isinstance(searcher, NeuralSearcher), "others have no budget to choose"
        _add_selector(job.output, report_selector(chooser, searcher.encoder, texts, choices))
    return results


def search_queries(
    searcher: Searcher, queries: list[Query], job: EvaluateJob, budgets: list[int] | None = None
) -> dict[str, dict[str, list[tuple[str, float]]]]:
    """Return, per mode, each query's ranked passages, its own document left out where the job says so.

    `budgets` gives each query its own K_q; None is the job's for all, or the retriever's own.
    """
    if budgets is None and job.query_budget:
        budgets = [job.query_budget] * len(queries)
    depth = searched_depth(job.top_k, exclude_self=job.exclude_self)
    found = searcher.search([query.text for query in queries], top_k=depth, budgets=budgets)
    return {mode: _by_query(queries, hits, job) for mode, hits in found.items()}


def _by_query(queries: list[Query], hits: Hits, job: EvaluateJob) -> dict[str, list[tuple[str, float]]]:
    pairs = zip(queries, hits, strict=True)
    return {query.id: kept_hits(query.id, found, job.top_k, exclude_self=job.exclude_self) for query, found in pairs}


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


def _add_selector(output: Path, report: SelectorReport) -> None:
    write_text(output / SELECTOR_FILE, report.model_dump_json(indent=2) + "\n")
    page = output / "report.md"
    write_text(page, page.read_text("utf-8") + selector_section(report))


def _write(job: EvaluateJob, evaluation: Evaluation, results: dict[str, EvaluationResult]) -> None:
    write_evaluation(job.output, evaluation, results)
    # Of an earlier evaluation in this folder.
    (job.output / SELECTOR_FILE).unlink(missing_ok=True)
    write_text(job.output / "evaluate.yaml", job.to_yaml())

"""From an index and a collection's queries, or from finished runs, to runs, measures and a report on disk."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median

from diffretriever.collections import Qrels, Query, Run, open_collection, read_qrels, read_run, write_run
from diffretriever.encoders.base import Encoder
from diffretriever.evaluation.conditions import coverage_of, coverage_warnings, settled_by_index, settled_by_runs
from diffretriever.evaluation.formats.tables import Cell, format_table, markdown_table
from diffretriever.evaluation.fused import (
    FUSION_FILE,
    FinishedRuns,
    Weights,
    check_disjoint,
    compare,
    fusion_section,
    read_runs,
)
from diffretriever.evaluation.measures import (
    EvaluationResult,
    evaluate,
    measures_of,
    overlap_of,
    parse_measures,
    relevant_in,
    warnings_of,
)
from diffretriever.evaluation.report import Evaluation, write_evaluation
from diffretriever.files import read_text, remove, write_text
from diffretriever.presets import in_tag, system_name
from diffretriever.progress import track
from diffretriever.schemas.evaluate import EvaluateJob, SelectorReport
from diffretriever.schemas.fusion import Fusion, FusionReport, named_runs
from diffretriever.schemas.places import StorePath
from diffretriever.search import open_searcher
from diffretriever.search.base import Searcher
from diffretriever.search.batch import kept_hits, searched_depth
from diffretriever.search.neural import NeuralSearcher
from diffretriever.search.selecting import BudgetChooser, Choice

_LOG = logging.getLogger(__name__)
SELECTOR_FILE = "selector.json"

# Queries that are encoded one by one for their time: so many, or fewer where these seconds have passed.
_TIMED_QUERIES = 50
_ENOUGH_SECONDS, _ENOUGH_QUERIES = 10.0, 5
_COLUMNS = ("K_q", "queries", "share", "encoding (ms)")


def evaluate_job(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    """Run an evaluate job and write its files; return the results by mode.

    A finished run is called `run`; several are called by their names, and what they are fused to by the way to fuse.

    Raises:
        ValueError: no such index, collection, split or measure, or a malformed run; nothing has been written then.
    """
    parse_measures(job.measures)
    if job.run is None and not job.runs:
        return _evaluate_index(job, command)
    name = None
    if job.collection is not None and job.qrels is None:
        name = open_collection(job.collection).name
    job = with_measures(job, name)
    return _evaluate_fused(job, command) if job.runs else _evaluate_run(job, command)


def with_measures(job: EvaluateJob, collection: str | None) -> EvaluateJob:
    """Return the job with measures: its own, or those of the collection of this name and the job's split."""
    return job.model_copy(update={"measures": job.measures or measures_of(collection, job.split)})


def _evaluate_index(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    assert job.collection is not None, "the config has checked this"
    collection = open_collection(job.collection)
    job = with_measures(job, collection.name)
    queries, qrels = collection.queries(job.split), collection.qrels(job.split)
    searcher = open_searcher(job.index, job, job.version)
    refuse_index_of_others(searcher, qrels, collection.name)
    coverage = coverage_of(searcher.index, collection)
    job, told = settled_by_index(job, searcher.index, queries, qrels)
    told = _warn([*coverage_warnings(job.index, coverage, collection.name), *told])
    texts = [query.text for query in queries]
    chooser = BudgetChooser.for_searcher(searcher, job.selector) if job.selector else None
    choices = chooser.choose(texts) if chooser else []
    budgets = [choice.budget for choice in choices] if chooser else None
    runs = search_queries(searcher, queries, job, budgets)
    results = {mode: evaluate(run, qrels, job.measures) for mode, run in track(runs.items(), "measuring", "runs")}
    system = job.tag or system_name(searcher.index.manifest, chooser.selector.name if chooser else job.query_budget)
    for mode, run in track(runs.items(), "writing runs", "runs"):
        write_run(job.output / f"{mode}.trec", [run], f"{system}.{mode}")
    texts_by_id = {query.id: query.text for query in queries}
    evaluation = Evaluation.of_index(searcher.index, job, command, collection.name, texts_by_id)
    evaluation = replace(evaluation, coverage=coverage, warnings=told)
    _write(job, evaluation, results)
    if chooser:
        assert isinstance(searcher, NeuralSearcher), "others have no budget to choose"
        report = report_selector(chooser, searcher.encoder, texts, choices)
        _add(job.output, SELECTOR_FILE, report, selector_section(report))
    return results


def refuse_index_of_others(searcher: Searcher, qrels: Qrels, collection: str) -> None:
    """Raise ValueError where an index holds none of the passages that a collection judges relevant."""
    relevant = relevant_in(qrels)
    if relevant and not (searcher.index.order.passages.numbers_of(relevant) >= 0).any():
        raise ValueError(
            f"{searcher.index.uri} holds none of the passages that {collection} judges relevant: take its index"
        )


def search_queries(
    searcher: Searcher, queries: list[Query], job: EvaluateJob, budgets: list[int] | None = None
) -> dict[str, Run]:
    """Return the run of each mode, queries' own documents left out where the job says so.

    Args:
        searcher: of the index.
        queries: ids and texts.
        job: its `modes`, `filter`, `top_k`, `drops_self` and `query_budget` are used.
        budgets: each query's K_q; None is the job's for all, or the retriever's own.

    Raises:
        ValueError: as the searcher does.
    """
    if budgets is None and job.query_budget:
        budgets = [job.query_budget] * len(queries)
    depth = searched_depth(job.top_k, exclude_self=job.drops_self)
    modes = tuple(dict.fromkeys(job.modes)) or None
    texts = [query.text for query in queries]
    found = searcher.search(texts, k=depth, modes=modes, budgets=budgets, filter=job.filter)
    ids = [query.id for query in queries]
    return {
        mode: Run(ids, kept_hits(ids, hits, job.top_k, exclude_self=job.drops_self)) for mode, hits in found.items()
    }


def _evaluate_run(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    assert job.run is not None, "the caller has checked this"
    name, found = job.run.name, {"run": read_run(job.run)}
    qrels = _qrels(job)
    job, found, told = settled_by_runs(job, found, qrels)
    results = {"run": evaluate(found["run"], qrels, job.measures)}
    told = _warn([*warnings_of(name, overlap_of(found["run"], qrels), len(qrels)), *told])
    evaluation = Evaluation(
        retriever=name,
        command=command,
        config=job.model_dump(mode="json"),
        collection=job.collection,
        warnings=told,
    )
    _write(job, evaluation, results)
    return results


def _evaluate_fused(job: EvaluateJob, command: str) -> dict[str, EvaluationResult]:
    qrels = _qrels(job)
    job, kept, told = settled_by_runs(job, read_runs(named_runs(job.runs, "--runs")), qrels)
    runs = FinishedRuns.of(kept, qrels, allow_missing=job.allow_missing)
    weights = _weights(job, runs.names, qrels)
    fused = {by: runs.fused(by, own.by_run, job.top_k) for by, own in weights.items()}
    measured: dict[str, Run] = {name: runs.single(name) for name in runs.names}
    measured.update(fused.items())
    results = {name: evaluate(run, qrels, job.measures) for name, run in track(measured.items(), "measuring", "runs")}
    overlaps = {name: overlap_of(measured[name], qrels) for name in runs.names}
    told = _warn([*(each for name, own in overlaps.items() for each in warnings_of(name, own, len(qrels))), *told])
    for by, run in track(fused.items(), "writing runs", "runs"):
        write_run(job.output / f"{by}.trec", [run], f"{job.tag or in_tag('+'.join(runs.names))}.{by}")
    best, tested = compare(results, weights, runs.names)
    report = FusionReport(
        measure=job.measures[0],
        best=best,
        tuned_by=job.tune_measure if job.tune_runs else None,
        tuned_on=(job.tune_split or str(job.tune_qrels)) if job.tune_runs else None,
        fused=tested,
    )
    evaluation = Evaluation(
        retriever=" + ".join(runs.names),
        command=command,
        config=job.model_dump(mode="json"),
        collection=job.collection,
        split=job.split if job.qrels is None else None,
        warnings=told,
    )
    _write(job, evaluation, results)
    _add(job.output, FUSION_FILE, report, fusion_section(report, results))
    return results


def _weights(job: EvaluateJob, names: Sequence[str], reported: Qrels) -> dict[Fusion, Weights]:
    if not job.tune_runs:
        return dict.fromkeys(job.fusions, Weights.given(names, job.weights))
    parse_measures([job.tune_measure])
    qrels = _tune_qrels(job)
    check_disjoint(reported, qrels)
    places = named_runs(job.tune_runs, "--tune-runs")
    found = read_runs({name: places[name] for name in names})
    runs = FinishedRuns.of(settled_by_runs(job, found, qrels)[1], qrels, allow_missing=job.allow_missing)
    return {by: Weights.tuned_on(runs, qrels, by, job.tune_measure) for by in job.fusions}


def _tune_qrels(job: EvaluateJob) -> Qrels:
    if job.tune_qrels is not None:
        return read_qrels(job.tune_qrels)
    assert job.collection is not None, "the config has checked this"
    assert job.tune_split is not None, "likewise"
    return open_collection(job.collection).qrels(job.tune_split)


def _qrels(job: EvaluateJob) -> Qrels:
    if job.qrels is not None:
        return read_qrels(job.qrels)
    assert job.collection is not None, "the config has checked this"
    return open_collection(job.collection).qrels(job.split)


def _warn(told: Sequence[str]) -> tuple[str, ...]:
    for each in told:
        _LOG.warning("warning: %s", each)
    return tuple(told)


def _write(job: EvaluateJob, evaluation: Evaluation, results: dict[str, EvaluationResult]) -> None:
    write_evaluation(job.output, evaluation, results)
    for name in (SELECTOR_FILE, FUSION_FILE):
        # Of an earlier evaluation in this folder.
        remove(job.output / name)
    write_text(job.output / "evaluate.yaml", job.to_yaml())


def report_selector(
    chooser: BudgetChooser, encoder: Encoder, texts: Sequence[str], choices: Sequence[Choice]
) -> SelectorReport:
    """Count what was chosen and time the encoding of some queries, one at a time, with every K_q and the chosen one.

    Args:
        chooser: that chose.
        encoder: of the queries.
        texts: of all queries, at least one.
        choices: one for each.
    """
    chosen = Counter(choice.budget for choice in choices)
    budgets = sorted({*chooser.selector.budgets, chooser.own_budget})
    sample = [texts[number] for number in range(0, len(texts), -(-len(texts) // _TIMED_QUERIES))]
    fixed: dict[int, list[float]] = {budget: [] for budget in budgets}
    adaptive: list[float] = []
    encode = encoder.encode_queries
    encode(sample[:1], [budgets[-1]])
    start = time.perf_counter()
    for text in sample:
        if len(adaptive) >= _ENOUGH_QUERIES and time.perf_counter() - start > _ENOUGH_SECONDS:
            break
        # One after the other for each query, so that a slower minute of the machine meets all of them.
        for budget, times in fixed.items():
            times.append(_milliseconds(partial(encode, [text], [budget])))
        adaptive.append(_milliseconds(partial(_choose_and_encode, chooser, encoder, text)))
    return SelectorReport(
        selector=chooser.selector.name,
        own_budget=chooser.own_budget,
        mean_budget=mean(choice.budget for choice in choices),
        queries={budget: chosen[budget] for budget in budgets},
        milliseconds={budget: median(times) for budget, times in fixed.items()},
        adaptive_milliseconds=median(adaptive),
        timed=len(adaptive),
    )


def _add(output: Path | StorePath, name: str, report: SelectorReport | FusionReport, section: str) -> None:
    """Write a file of its own beside the report, and its section at the end of the page."""
    write_text(output / name, report.model_dump_json(indent=2) + "\n")
    page = output / "report.md"
    write_text(page, read_text(page) + section)


def selector_table(report: SelectorReport) -> str:
    """Return the report as plain text, for the terminal."""
    return f"{_sentence(report)}\n\n{format_table(_rows(report), _COLUMNS)}"


def selector_section(report: SelectorReport) -> str:
    """Return the report as a section of a page in Markdown."""
    note = f"Median time of {report.timed:,} queries encoded alone; the adaptive one includes the choice."
    return f"\n## Adaptive K_q\n\n{_sentence(report)}\n\n{markdown_table(_rows(report), _COLUMNS)}\n\n{note}\n"


def _sentence(report: SelectorReport) -> str:
    return f"Selector {report.selector}: mean K_q {report.mean_budget:.2f}; the retriever's own is {report.own_budget}."


def _rows(report: SelectorReport) -> list[list[Cell]]:
    total = sum(report.queries.values())
    rows: list[list[Cell]] = [
        [str(budget), f"{count:,}", f"{count / total:.1%}", f"{report.milliseconds[budget]:.1f}"]
        for budget, count in report.queries.items()
    ]
    return [*rows, ["adaptive", f"{total:,}", "100.0%", f"{report.adaptive_milliseconds:.1f}"]]


def _choose_and_encode(chooser: BudgetChooser, encoder: Encoder, text: str) -> None:
    encoder.encode_queries([text], [choice.budget for choice in chooser.choose([text])])


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)

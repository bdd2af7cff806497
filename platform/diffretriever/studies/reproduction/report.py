"""The report of a reproduction, `reproduction.json`, and the listing of a dry run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pyarrow import parquet

from diffretriever.collections.beir import PUBLISHED_PASSAGES
from diffretriever.core.files import is_file, open_input, read_model, understood, write_text
from diffretriever.evaluation.formats.tables import Cell, format_table
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.statistics import ALPHA, holm, paired_p
from diffretriever.schemas.base import Model
from diffretriever.schemas.encode import EncodeSummary
from diffretriever.schemas.evaluate import EvaluationReport
from diffretriever.schemas.locations import StorePath
from diffretriever.studies.reproduction.config import STORAGE_FILE, IndexStorage, PublishedTable, ReproduceJob
from diffretriever.studies.reproduction.plan import DONE, READY, Plan, PlannedRow, Task
from diffretriever.studies.reproduction.sizes import corpus_of
from diffretriever.studies.reproduction.tables import AVERAGE, BEIR7

Column: TypeAlias = tuple[str, str, str]
"""Collection, mode, measure."""
Reader: TypeAlias = Callable[[Path | StorePath], dict[str, EvaluationResult]]

_MARK = " (stand-in)"
_AGAIN = "remove its folder and run the same command again"
_CITED = " (reported by others, cited by the paper)"
_SMALLEST_P = 0.001


class PairedTest(Model):
    """A two-sided paired t-test over queries."""

    against: str
    """Id of the other row; a compressed row is compared with its own index before."""
    difference: float
    """Mean over queries of this row less the other."""
    p: float
    """Corrected where the table says so."""
    significant: bool
    """p below .05."""


class ReproducedCell(Model):
    """One figure of a row."""

    collection: str
    mode: str
    measure: str
    published: float | None
    ours: float | None
    """None where the row could not be run."""
    difference: float | None
    """Ours less the paper's; None if the collection has another size here."""
    tests: tuple[PairedTest, ...]


class ReproducedRow(Model):
    """One row of a table after a run."""

    id: str
    label: str
    reported: bool
    """The paper cites its figures from elsewhere."""
    stand_ins: dict[str, str]
    """Published source → folder that was loaded instead, if any: such numbers are not the published model's."""
    status: dict[str, str]
    """Collection → `done`, or why there is no number."""
    cells: tuple[ReproducedCell, ...]


class ReproducedTable(Model):
    """One table after a run."""

    id: str
    place: str
    caption: str
    correction: Literal["none", "holm"]
    protocol: str | None = None
    """What the rows were run under."""
    rows: tuple[ReproducedRow, ...]


class ReproductionReport(Model):
    """The file `reproduction.json`."""

    tables: tuple[ReproducedTable, ...]
    stand_ins: dict[str, str]
    """Of all rows that were run."""
    notes: tuple[str, ...]
    """Further notes, such as records that could not be encoded."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""


def make_report(
    plan: Plan, job: ReproduceJob, failed: Mapping[Path | StorePath, str], command: str
) -> ReproductionReport:
    """Return the results so far next to the published figures."""
    # Rows share evaluations: each is read once.
    read = cache(read_results)
    return ReproductionReport(
        tables=tuple(_table(table, rows, read, failed) for table, rows in plan.tables),
        stand_ins={source: folder for row in plan.rows() if _was_run(row) for source, folder in row.stand_ins.items()},
        notes=tuple(_notes(plan)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        config=job.model_dump(mode="json"),
    )


def write_report(
    plan: Plan, job: ReproduceJob, failed: Mapping[Path | StorePath, str], command: str
) -> ReproductionReport:
    """Write `reproduction.json` into the job's output folder and return the report."""
    report = make_report(plan, job, failed, command)
    write_text(job.output / "reproduction.json", report.model_dump_json(indent=2) + "\n")
    return report


def _table(
    table: PublishedTable, rows: tuple[PlannedRow, ...], read: Reader, failed: Mapping[Path | StorePath, str]
) -> ReproducedTable:
    samples = {
        (planned.row.id, column): _sample(planned, column, read) for planned in rows for column in _columns(planned)
    }
    tests = _paired_tests(table, rows, samples)
    return ReproducedTable(
        id=table.id,
        place=table.place,
        caption=table.caption,
        correction=table.correction,
        protocol=table.protocol,
        rows=tuple(_row(planned, samples, tests, failed) for planned in rows),
    )


def _row(
    planned: PlannedRow,
    samples: Mapping[tuple[str, Column], Sample | None],
    tests: Mapping[tuple[str, Column], list[PairedTest]],
    failed: Mapping[Path | StorePath, str],
) -> ReproducedRow:
    row = planned.row
    cells, sizes = [], {name for name in planned.tasks if _other_size(planned, name)}
    for column in _columns(planned):
        collection, mode, measure = column
        published, sample = row.figures[collection][mode][measure], samples[row.id, column]
        ours = None if sample is None else sample.mean
        cells.append(
            ReproducedCell(
                collection=collection,
                mode=mode,
                measure=measure,
                published=published,
                ours=ours,
                difference=None if ours is None or published is None or column[0] in sizes else ours - published,
                tests=tuple(tests.get((row.id, column), [])),
            )
        )
    status = {name: _status(planned, name, failed) for name in planned.tasks}
    return ReproducedRow(
        id=row.id,
        label=row.label,
        reported=row.reported,
        stand_ins=planned.stand_ins,
        status=status,
        cells=tuple(cells),
    )


def _paired_tests(
    table: PublishedTable, rows: tuple[PlannedRow, ...], samples: Mapping[tuple[str, Column], Sample | None]
) -> dict[tuple[str, Column], list[PairedTest]]:
    by_column: dict[Column, list[tuple[str, PairedTest]]] = defaultdict(list)
    for planned in rows:
        for column in _columns(planned):
            ours = samples[planned.row.id, column]
            for other, place in _rivals(planned, column):
                theirs = samples.get(place)
                if ours is not None and theirs is not None:
                    by_column[column].append((planned.row.id, _paired_test(other, ours, theirs)))
    tests: dict[tuple[str, Column], list[PairedTest]] = defaultdict(list)
    for column, found in by_column.items():
        p_values = [test.p for _, test in found]
        corrected = holm(p_values) if table.correction == "holm" else p_values
        for (row, test), p in zip(found, corrected, strict=True):
            tests[row, column].append(test.model_copy(update={"p": p, "significant": p < ALPHA}))
    return tests


def _rivals(planned: PlannedRow, column: Column) -> Iterator[tuple[str, tuple[str, Column]]]:
    collection, mode, measure = column
    for other in planned.row.against:
        yield other, (other, column)
    if mode == "compressed" and "@" in measure:
        yield planned.row.id, (planned.row.id, (collection, "dense", measure))


def _paired_test(other: str, ours: Sample, theirs: Sample) -> PairedTest:
    p = paired_p(ours.per_query, theirs.per_query)
    differences = [value - theirs.per_query[query] for query, value in ours.per_query.items()]
    return PairedTest(against=other, difference=math.fsum(differences) / len(differences), p=p, significant=p < ALPHA)


def _columns(planned: PlannedRow) -> list[Column]:
    figures = planned.row.figures
    return [(name, mode, measure) for name in figures for mode in figures[name] for measure in figures[name][mode]]


def _status(planned: PlannedRow, collection: str, failed: Mapping[Path | StorePath, str]) -> str:
    task = planned.tasks[collection]
    if isinstance(task, Task) and task.results in failed:
        return " ".join(failed[task.results].split())
    return planned.status(collection)


def _was_run(planned: PlannedRow) -> bool:
    return any(planned.status(collection) == DONE for collection in planned.tasks)


def _notes(plan: Plan) -> list[str]:
    notes = {}
    for task in (task for tasks in plan.tasks().values() for task in tasks):
        if task.is_done and task.is_indexed:
            summary = read_model(task.summary, EncodeSummary, _AGAIN)
            if summary.bad:
                kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(summary.bad_reasons.items()))
                notes[task.queries.name] = f"records left out of {task.queries.name}: {kinds}"
    sizes = {
        f"NOT COMPARABLE with the paper: {text}; no differences are shown"
        for row in plan.rows()
        for collection in row.tasks
        if (text := _other_size(row, collection))
    }
    return [*sorted(sizes), *(notes[name] for name in sorted(notes))]


def _other_size(planned: PlannedRow, collection: str) -> str | None:
    """Return how the passages of a finished row differ in number from the published ones; None if they do not."""
    task, published = planned.tasks[collection], PUBLISHED_PASSAGES.get(corpus_of(collection))
    if published is None or not isinstance(task, Task) or not (task.is_done and task.is_indexed):
        return None
    summary = read_model(task.summary, EncodeSummary, _AGAIN)
    passages = summary.rows + summary.bad
    return None if passages == published else f"{collection} has {passages:,} passages here, {published:,} as published"


@dataclass(frozen=True)
class Sample:
    """One measured cell."""

    mean: float
    per_query: dict[str, float]
    """Query id → value; of an average, every query of every collection."""


def _sample(planned: PlannedRow, column: Column, read: Reader) -> Sample | None:
    collection, mode, measure = column
    if collection == AVERAGE:
        return _average(planned, mode, measure, read)
    task = planned.tasks[collection]
    if not isinstance(task, Task) or not task.is_done:
        return None
    result = read(task.results).get(mode)
    if result is None or measure not in result.mean:
        return None
    return Sample(result.mean[measure], result.per_query[measure])


def _average(planned: PlannedRow, mode: str, measure: str, read: Reader) -> Sample | None:
    """Average the seven collections with equal weight; tests pool their queries, as the paper does."""
    pooled: dict[str, float] = {}
    means = []
    for collection in BEIR7:
        sample = _sample(planned, (collection, mode, measure), read)
        if sample is None:
            return None
        means.append(sample.mean)
        pooled |= {f"{collection}/{query}": value for query, value in sample.per_query.items()}
    return Sample(sum(means) / len(means), pooled)


def read_results(folder: Path | StorePath) -> dict[str, EvaluationResult]:
    """Read the evaluation in `folder` by mode; raise `ValueError` for damaged files."""
    report = read_model(folder / "metrics.json", EvaluationReport, _AGAIN)
    place = folder / "per_query.parquet"
    with understood(place, _AGAIN), open_input(place) as stream:
        groups = parquet.read_table(stream).to_pandas().groupby(["mode", "measure"])
        per_query = {key: dict(zip(rows["query_id"], rows["value"], strict=True)) for key, rows in groups}
    results = {
        mode: EvaluationResult(means, {measure: per_query.get((mode, measure), {}) for measure in means})
        for mode, means in report.measures.items()
    }
    return _with_sizes(folder, results)


def _with_sizes(folder: Path | StorePath, results: dict[str, EvaluationResult]) -> dict[str, EvaluationResult]:
    if not is_file(folder / STORAGE_FILE):
        return results
    sizes = read_model(folder / STORAGE_FILE, IndexStorage, _AGAIN).sizes()
    return {
        mode: EvaluationResult(
            result.mean | sizes[mode], result.per_query | {name: {"index": size} for name, size in sizes[mode].items()}
        )
        for mode, result in results.items()
    }


def terminal_table(report: ReproductionReport) -> str:
    """Return the results as plain text, a line for each figure."""
    rows: list[list[Cell]] = [
        [table.id, _label(row), cell.collection, cell.mode, cell.measure, *_values(cell), _tests_shown(table, cell)]
        for table in report.tables
        for row in table.rows
        for cell in row.cells
        if cell.ours is not None
    ]
    if not rows:
        return "no row could be run; --dry-run lists what each of them needs"
    text = format_table(
        rows, ["table", "row", "collection", "mode", "measure", "paper", "ours", "difference", "paired tests"]
    )
    return "\n".join([text, *stand_in_warning(report), *report.notes])


def listing(plan: Plan) -> str:
    """Return every row of every table with its collections, grouped by status."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for table, rows in plan.tables:
        lines.append(f"{table.id}: {table.caption} ({table.place})")
        for planned in rows:
            preset = "" if planned.row.preset is None else f" [{planned.row.preset}]"
            lines.append(f"  {planned.row.label}{_CITED if planned.row.reported else ''}{preset}")
            by_status: dict[str, list[str]] = defaultdict(list)
            for collection in planned.tasks:
                by_status[planned.status(collection)].append(collection)
            lines += [f"    {', '.join(names)}: {status}" for status, names in by_status.items()]
            counts.update({status: len(names) for status, names in by_status.items()})
        lines.append("")
    blocked = counts.total() - counts[READY] - counts[DONE]
    return "\n".join([*lines, f"{counts[READY]} ready, {counts[DONE]} done, {blocked} cannot be run"])


def stand_in_warning(report: ReproductionReport) -> list[str]:
    """Return a paragraph that names the stand-ins, or nothing where there were none."""
    if not report.stand_ins:
        return []
    places = "; ".join(f"{folder} in place of {source}" for source, folder in report.stand_ins.items())
    used = f"STAND-INS WERE USED: {places}. Rows marked{_MARK} were run with those weights."
    return [f"{used} Unless they are the published ones, their numbers are NOT comparable with the paper's."]


def _label(row: ReproducedRow) -> str:
    return f"{row.label}{_CITED if row.reported else ''}{_MARK if row.stand_ins else ''}"


def _values(cell: ReproducedCell) -> tuple[str, str, str]:
    difference = "" if cell.difference is None else f"{cell.difference:+.3f}"
    return _number(cell.published, cell.measure), _number(cell.ours, cell.measure), difference


def _number(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if "@" in measure else f"{value:g}"


def _tests_shown(table: ReproducedTable, cell: ReproducedCell) -> str:
    labels = {row.id: row.label for row in table.rows}
    return "; ".join(f"against {labels[test.against]}: {cell.mode} {_p(test)}" for test in cell.tests)


def _p(test: PairedTest) -> str:
    value = f"p = {test.p:.3f}" if test.p >= _SMALLEST_P else f"p < {_SMALLEST_P}"
    return f"{value} *" if test.significant else value

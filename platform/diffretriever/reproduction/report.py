"""From a plan and the evaluations on disk to `reproduction.json` and `reproduction.md`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from diffretriever.files import write_text
from diffretriever.reproduction.page import reproduction_page
from diffretriever.reproduction.plan import DONE, Plan, PlannedRow, Task
from diffretriever.reproduction.results import Results, Sample
from diffretriever.statistics.significance import ALPHA, holm, paired_p
from schemas.encode import EncodeSummary
from schemas.reproduce import (
    PairedTest,
    PublishedTable,
    ReproducedCell,
    ReproducedRow,
    ReproducedTable,
    ReproduceJob,
    ReproductionReport,
)

Column: TypeAlias = tuple[str, str, str]
"""Collection, mode, measure."""


def write_report(plan: Plan, job: ReproduceJob, failed: Mapping[Path, str], command: str) -> ReproductionReport:
    """Write the two files into the job's output folder and return what is in the JSON.

    Args:
        plan: of `job`.
        job: goes into the report.
        failed: results folder of each task that failed → why.
        command: the command line.
    """
    results = Results()
    report = ReproductionReport(
        tables=tuple(_table(table, rows, results, failed) for table, rows in plan.tables),
        stand_ins={source: folder for row in plan.rows() if _was_run(row) for source, folder in row.stand_ins.items()},
        notes=tuple(_notes(plan)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        config=job.model_dump(mode="json"),
    )
    write_text(job.output / "reproduction.md", reproduction_page(report))
    write_text(job.output / "reproduction.json", report.model_dump_json(indent=2) + "\n")
    return report


def _table(
    table: PublishedTable, rows: tuple[PlannedRow, ...], results: Results, failed: Mapping[Path, str]
) -> ReproducedTable:
    samples = {
        (planned.row.id, column): results.sample(planned, *column) for planned in rows for column in _columns(planned)
    }
    tests = _tests(table, rows, samples)
    return ReproducedTable(
        id=table.id,
        place=table.place,
        caption=table.caption,
        correction=table.correction,
        rows=tuple(_row(planned, samples, tests, failed) for planned in rows),
    )


def _row(
    planned: PlannedRow,
    samples: Mapping[tuple[str, Column], Sample | None],
    tests: Mapping[tuple[str, Column], list[PairedTest]],
    failed: Mapping[Path, str],
) -> ReproducedRow:
    row = planned.row
    cells = []
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
                difference=None if ours is None or published is None else ours - published,
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


def _tests(
    table: PublishedTable, rows: tuple[PlannedRow, ...], samples: Mapping[tuple[str, Column], Sample | None]
) -> dict[tuple[str, Column], list[PairedTest]]:
    """Compare each row with the rows it names, column by column; a column's tests are corrected together."""
    by_column: dict[Column, list[tuple[str, str, float]]] = defaultdict(list)
    for planned in rows:
        for column in _columns(planned):
            ours = samples[planned.row.id, column]
            for other in planned.row.against:
                theirs = samples.get((other, column))
                if ours is not None and theirs is not None:
                    by_column[column].append((planned.row.id, other, paired_p(ours.per_query, theirs.per_query)))
    tests: dict[tuple[str, Column], list[PairedTest]] = defaultdict(list)
    for column, found in by_column.items():
        p_values = [p for _, _, p in found]
        corrected = holm(p_values) if table.correction == "holm" else p_values
        for (row, other, _), p in zip(found, corrected, strict=True):
            tests[row, column].append(PairedTest(against=other, p=p, significant=p < ALPHA))
    return tests


def _columns(planned: PlannedRow) -> list[Column]:
    figures = planned.row.figures
    return [(name, mode, measure) for name in figures for mode in figures[name] for measure in figures[name][mode]]


def _status(planned: PlannedRow, collection: str, failed: Mapping[Path, str]) -> str:
    task = planned.tasks[collection]
    if isinstance(task, Task) and task.results in failed:
        return " ".join(failed[task.results].split())
    return planned.status(collection)


def _was_run(planned: PlannedRow) -> bool:
    return any(planned.status(collection) == DONE for collection in planned.tasks)


def _notes(plan: Plan) -> list[str]:
    """Say what the encodings left out."""
    notes = {}
    for task in (task for tasks in plan.tasks().values() for task in tasks):
        if task.is_done and task.is_indexed:
            summary = EncodeSummary.model_validate_json(task.summary.read_text("utf-8"))
            if summary.bad:
                kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(summary.bad_reasons.items()))
                notes[task.queries.name] = f"records left out of {task.queries.name}: {kinds}"
    return [notes[name] for name in sorted(notes)]

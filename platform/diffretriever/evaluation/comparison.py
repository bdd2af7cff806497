"""Compares systems on the same queries: means, significant differences, and queries on which they differ.

Writes `comparison.json`, `per_query.parquet`, two figures, and a page in Markdown, LaTeX and HTML.

Legend: Q queries, C pairs of systems.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from pyarrow import parquet

from diffretriever.collections import Collection, Qrels, Run, open_collection, read_qrels
from diffretriever.core.files import whole_file, write_bytes, write_text
from diffretriever.evaluation.conditions import coverage_told, coverage_warnings, settled_by_runs
from diffretriever.evaluation.evaluate import search_collection
from diffretriever.evaluation.figures import BASE, BLUE, INK, RED, panel_figure, png, quiet
from diffretriever.evaluation.formats.pages import Command, Picture, Section, Table, TableCell, write_pages
from diffretriever.evaluation.formats.tables import format_table, level_with_interval, points, signed
from diffretriever.evaluation.fused import FinishedRuns, read_runs
from diffretriever.evaluation.measures import (
    EvaluationResult,
    evaluate,
    measures_of,
    overlap_of,
    parse_measures,
    warnings_of,
)
from diffretriever.evaluation.report import (
    INTERVAL_NOTE,
    draw_measures,
    intervals_of,
    per_query_table,
    summary_of,
)
from diffretriever.evaluation.statistics import ALPHA, holm, randomisation_p_each, t_test_p
from diffretriever.schemas.evaluate import TESTS, CompareJob, ComparisonReport, Coverage, EvaluateJob, Overlap, Test
from diffretriever.schemas.fusion import named_runs
from diffretriever.schemas.places import StorePath
from diffretriever.search import open_searcher

_T = TypeVar("_T")
_MOST = len(string.ascii_lowercase)
_DIFFERING = 5
"""Queries of each kind that a page shows."""
_LONGEST = 36
"""Characters of a name above a panel."""
_DRAWN = 10
"""Maximum number of systems in the figure, including the best."""


def compare_runs(job: CompareJob, command: str) -> ComparisonReport:
    """Measure the runs and indexes of a compare job, write its files, and return the content of `comparison.json`.

    Raises:
        ValueError: Malformed run or qrels, unknown index, collection, split or measure, a run that lacks queries, or
            runs without a common passage. Nothing has been written then.
    """
    collection = None if job.collection is None else open_collection(job.collection)
    name = None if collection is None else collection.name
    measures = job.measures or measures_of(name, job.split)
    parse_measures(measures)
    if job.qrels is not None:
        qrels: Qrels = read_qrels(job.qrels)
    else:
        assert collection is not None, "the config has checked this"
        qrels = collection.qrels(job.split)
    finished = read_runs(named_runs(job.runs, "--runs"))
    searched = _Searched() if collection is None else _searched(job, collection)
    # Self-exclusion applies to all systems, whichever of them shows that queries are passages.
    settled = job.model_copy(update={"exclude_self": True}) if searched.told else job
    _, finished, notices = settled_by_runs(settled, finished | searched.runs, qrels)
    runs = FinishedRuns.of(finished, qrels)
    measured = {name: runs.single(name) for name in runs.names}
    overlap = {name: overlap_of(run, qrels) for name, run in measured.items()}
    measured.update({f"fused by {by}": run for by, run in runs.fused_alike(job.fusions, measures).items()})
    systems = {name: {name: evaluate(run, qrels, measures)} for name, run in measured.items()}
    title = " and ".join([", ".join(runs.names[:-1]), runs.names[-1]])
    place = f" on {name} ({job.split})" if job.qrels is None else ""
    report = compared(
        f"{title}{place}",
        systems,
        command,
        job.test,
        overlap=overlap,
        coverage=searched.coverage,
        warnings=[*searched.warnings, *(searched.told or notices)],
    )
    write_comparison(job.output, report, systems)
    write_text(job.output / "compare.yaml", job.to_yaml())
    return report


@dataclass
class _Searched:
    """Search results of a job's indexes."""

    runs: dict[str, Run] = field(default_factory=dict)
    """By index name, and mode if there are several."""
    coverage: dict[str, Coverage] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    told: tuple[str, ...] = ()
    """Notices that queries are passages of an index."""


def _searched(job: CompareJob, collection: Collection) -> _Searched:
    results = _Searched()
    for name, place in job.named_indexes.items():
        evaluation = EvaluateJob(
            index=str(place),
            collection=job.collection,
            split=job.split,
            output=job.output,
            exclude_self=job.exclude_self,
            documents=job.documents,
        )
        searched = search_collection(open_searcher(evaluation.index, evaluation.search_options), collection, evaluation)
        results.coverage[name] = searched.coverage
        results.warnings += coverage_warnings(name, searched.coverage, collection.name)
        results.told = results.told or searched.exclusion
        runs = searched.runs
        results.runs |= {f"{name} {mode}" if len(runs) > 1 else name: run for mode, run in runs.items()}
    return results


def write_comparison(
    output: Path | StorePath, report: ComparisonReport, systems: Mapping[str, Mapping[str, EvaluationResult]]
) -> None:
    """Write the files of a comparison atomically; equal inputs give equal bytes, except `created`."""
    rows = _labelled(systems)
    means, intervals = _labelled(report.measures), _labelled(report.intervals)
    figure = draw_measures(means, intervals, report.title, summary_of(report.queries))
    write_bytes(output / "comparison.png", figure)
    if len(rows) > 1:
        write_bytes(output / "differences.png", draw_differences(rows))
    with whole_file(output / "per_query.parquet") as stream:
        parquet.write_table(per_query_table({"system": rows}), stream)
    write_pages(output, "comparison", report.title, _sections(report, rows))
    write_text(output / "comparison.json", report.model_dump_json(indent=2) + "\n")


def compared(
    title: str,
    systems: Mapping[str, Mapping[str, EvaluationResult]],
    command: str,
    test: Test = "t-test",
    overlap: Mapping[str, Overlap] | None = None,
    coverage: Mapping[str, Coverage] | None = None,
    warnings: Sequence[str] = (),
) -> ComparisonReport:
    """Return means, intervals and significant differences of 1 to 26 systems.

    `systems` has results by system and mode, `overlap` and `coverage` are by name, and `warnings` add to the overlap's.

    Raises:
        ValueError: The systems have different queries or measures, or there are too many.
    """
    rows = _labelled(systems)
    _check_comparable(rows)
    first = next(iter(rows.values()))
    queries, overlap = len(next(iter(first.per_query.values()))), dict(overlap or {})
    return ComparisonReport(
        title=title,
        measures={system: {mode: r.mean for mode, r in modes.items()} for system, modes in systems.items()},
        intervals={system: intervals_of(modes) for system, modes in systems.items()},
        better_than=better_than(rows, test),
        test=test,
        queries=queries,
        overlap=overlap,
        coverage=dict(coverage or {}),
        warnings=(*warnings, *(told for name, own in overlap.items() for told in warnings_of(name, own, queries))),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )


def comparison_table(systems: Mapping[str, Mapping[str, EvaluationResult]]) -> str:
    """Return the means by system and measure as plain text."""
    rows = _labelled(systems)
    measures = list(next(iter(rows.values())).mean)
    return format_table([[label, *row.mean.values()] for label, row in rows.items()], ["system", *measures])


def lettered_table(report: ComparisonReport) -> str:
    """Return the means as plain text, with the letters of the systems that each is significantly better than."""
    means = _labelled(report.measures)
    letters = _letters(report)
    cells = [
        [f"{letters[label]} {label}", *(f"{value:.4f} {_marks(report, m, label)}".rstrip() for m, value in row.items())]
        for label, row in means.items()
    ]
    table = format_table(cells, ["system", *next(iter(means.values()))])
    return "\n".join([table, "", _note(report), *(f"warning: {told}" for told in report.warnings)])


def better_than(rows: Mapping[str, EvaluationResult], test: Test) -> dict[str, dict[str, list[str]]]:
    """Return by measure the systems that each is significantly better than.

    Two-sided paired tests of all pairs, with Holm's correction over the pairs of a measure.
    """
    found: dict[str, dict[str, list[str]]] = {}
    pairs = list(combinations(rows, 2))
    for measure in next(iter(rows.values())).mean if pairs else ():
        queries = next(iter(rows.values())).per_query[measure]
        values = {label: np.array([row.per_query[measure][query] for query in queries]) for label, row in rows.items()}
        differences_CQ = np.stack([values[one] - values[other] for one, other in pairs])
        p_values = [*map(t_test_p, differences_CQ)] if test == "t-test" else randomisation_p_each(differences_CQ)
        beaten: dict[str, list[str]] = {label: [] for label in rows}
        for (one, other), p, mean in zip(pairs, holm(p_values), differences_CQ.mean(axis=1), strict=True):
            if p < ALPHA:
                better, worse = (one, other) if mean > 0 else (other, one)
                beaten[better].append(worse)
        found[measure] = {label: sorted(worse, key=list(rows).index) for label, worse in beaten.items()}
    return found


def _check_comparable(rows: Mapping[str, EvaluationResult]) -> None:
    if len(rows) > _MOST:
        raise ValueError(f"{len(rows)} systems are too many for one table: compare at most {_MOST}")
    first = next(iter(rows))
    for label, row in rows.items():
        if list(row.mean) != list(rows[first].mean):
            raise ValueError(f"'{label}' and '{first}' have different measures: evaluate both with the same ones")
        measure = next(iter(row.mean))
        if row.per_query[measure].keys() != rows[first].per_query[measure].keys():
            raise ValueError(f"'{label}' and '{first}' have different queries: evaluate both with the same qrels")


def _sections(report: ComparisonReport, rows: Mapping[str, EvaluationResult]) -> list[Section]:
    picture = Picture("comparison.png", "Figure", f"{summary_of(report.queries)}.")
    measures = Section("Measures", [means_of(report), *(f"Warning: {told}." for told in report.warnings)])
    sections = [measures, Section("Intervals", [_intervals(report), picture])]
    if len(rows) > 1:
        measure, (best, *_) = _by_mean(rows)
        drawn = f"{measure} of each system less that of {best}, by query, in order."
        sections.append(
            Section("Where they differ", [_differing(rows), Picture("differences.png", "Differences", drawn)])
        )
    if report.overlap:
        covered = [f"{coverage_told(name, own, 'the collection')}." for name, own in report.coverage.items()]
        sections.append(Section("Runs and judgements", [_overlaps(report), *covered]))
    return [*sections, Section("Command", [Command(report.command)])]


def means_of(report: ComparisonReport) -> Table:
    """Return the means as a table, with the letters."""
    means = _labelled(report.measures)
    measures = list(next(iter(means.values())))
    best = {measure: max(points(row[measure]) for row in means.values()) for measure in measures}
    letters = _letters(report)
    rows = [
        [
            letters[label],
            label,
            *(TableCell(points(row[m]), _marks(report, m, label), bold=points(row[m]) == best[m]) for m in measures),
        ]
        for label, row in means.items()
    ]
    caption = f"Means over the same {report.queries:,} queries; the best is bold. {_note(report)}"
    return Table("Measures", caption, pd.DataFrame(rows, columns=["", "system", *measures]), n_labels=2)


def _intervals(report: ComparisonReport) -> Table:
    means, intervals = _labelled(report.measures), _labelled(report.intervals)
    rows = [[label, *(level_with_interval(row[m], intervals[label][m]) for m in row)] for label, row in means.items()]
    frame = pd.DataFrame(rows, columns=["system", *next(iter(means.values()))])
    return Table("Intervals", f"Means {INTERVAL_NOTE}.", frame)


def _differing(rows: Mapping[str, EvaluationResult]) -> Table:
    measure, (best, second, *_) = _by_mean(rows)
    ours, theirs = (rows[label].per_query[measure] for label in (best, second))
    gains = sorted(ours, key=lambda query: (theirs[query] - ours[query], query))
    shown = [query for query in gains[:_DIFFERING] if ours[query] > theirs[query]]
    shown += [query for query in gains[-_DIFFERING:] if ours[query] < theirs[query]]
    cells = [[q, points(ours[q]), points(theirs[q]), signed(ours[q] - theirs[q])] for q in shown]
    caption = f"{measure} of the best system and the next, on the queries where they differ most."
    return Table("Differences", caption, pd.DataFrame(cells, columns=["query", best, second, "difference"]))


def _overlaps(report: ComparisonReport) -> Table:
    rows = [
        [name, f"{own.queries:,}", f"{own.judged:.1%}", f"{own.relevant:,}"] for name, own in report.overlap.items()
    ]
    caption = (
        f"Of {report.queries:,} judged queries, those that a run has passages for; how many of their first ten are "
        "judged; and the relevant passages that it finds. A passage without a judgement counts as not relevant."
    )
    return Table("Overlap", caption, pd.DataFrame(rows, columns=["run", "queries", "judged@10", "relevant found"]))


def draw_differences(rows: Mapping[str, EvaluationResult]) -> bytes:
    """Return a PNG with a panel per system: its sorted per-query differences from the best system."""
    measure, ranked = _by_mean(rows)
    best, *others = ranked[:_DRAWN]
    title, subtitle = f"{measure}, query by query", f"each system less {best}; queries from its worst to its best"
    figure, panels = panel_figure(len(others), 3, (2.9, 2.0), title, subtitle, share_y=True)
    for panel, label in zip(panels, others, strict=True):
        differences = np.sort(
            [value - rows[best].per_query[measure][query] for query, value in rows[label].per_query[measure].items()]
        )
        places = np.arange(len(differences))
        for sign, colour in ((-1, RED), (1, BLUE)):
            one_side = np.where(np.sign(differences) == sign, differences, 0.0)
            panel.fill_between(places, one_side, step="mid", color=colour, linewidth=0, zorder=2)
        panel.axhline(0, color=BASE, linewidth=0.8, zorder=3)
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        panel.set_title(label if len(label) <= _LONGEST else f"{label[:_LONGEST]}…", loc="left", fontsize=9, color=INK)
        panel.set_xlabel(f"{wins:,} better, {losses:,} worse", fontsize=8.5, color=INK)
        panel.set_xticks([])
        quiet(panel, "y")
    return png(figure)


def _by_mean(rows: Mapping[str, EvaluationResult]) -> tuple[str, list[str]]:
    measure = next(iter(next(iter(rows.values())).mean))
    return measure, sorted(rows, key=lambda label: -rows[label].mean[measure])


def _marks(report: ComparisonReport, measure: str, label: str) -> str:
    letters = _letters(report)
    return "".join(letters[worse] for worse in report.better_than.get(measure, {}).get(label, ()))


def _letters(report: ComparisonReport) -> dict[str, str]:
    return dict(zip(_labelled(report.measures), string.ascii_lowercase, strict=False))


def _note(report: ComparisonReport) -> str:
    return (
        "A letter names a system that this one is significantly better than: p < .05, two-sided paired "
        f"{TESTS[report.test]}, corrected by Holm for all pairs."
    )


def _labelled(systems: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    return {
        system if len(modes) == 1 else f"{system} {mode}": value
        for system, modes in systems.items()
        for mode, value in modes.items()
    }

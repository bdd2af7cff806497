"""Pages, figures and tables of a comparison.

`comparison.json`, `per_query.parquet`, three figures, and a page in Markdown, LaTeX and HTML.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, StrMethodFormatter
from pyarrow import parquet

from diffretriever.core.files import whole_file, write_bytes, write_text
from diffretriever.evaluation.conditions import conditions_table, differing_conditions
from diffretriever.evaluation.figures import BASE, BLUE, INK, RED, panel_figure, png, quiet
from diffretriever.evaluation.formats.pages import Block, Command, Picture, Section, Table, TableCell, write_pages
from diffretriever.evaluation.formats.tables import (
    format_table,
    level_with_interval,
    p_value,
    points,
    signed,
    with_interval,
)
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.report import INTERVAL_NOTE, draw_measures, per_query_table, summary_of
from diffretriever.schemas.evaluate import TESTS, ComparisonReport, Conditions
from diffretriever.schemas.locations import StorePath

_T = TypeVar("_T")
_DIFFERING = 5
"""Queries of each kind that a page shows."""
_LONGEST = 36
"""Characters of a name above a panel."""
_LONGEST_LEGEND = 90
"""Characters of a legend below a title."""
_DRAWN = 10
"""Maximum number of systems in the figure, including the best."""
_COSTS = ("bytes a passage", "milliseconds a query")


def write_comparison(
    output: Path | StorePath, report: ComparisonReport, systems: Mapping[str, Mapping[str, EvaluationResult]]
) -> None:
    """Write the files of a comparison atomically; equal inputs give equal bytes, except `created`."""
    rows = labelled(systems)
    means, intervals = labelled(report.measures), labelled(report.intervals)
    figure = draw_measures(means, intervals, report.title, summary_of(report.queries))
    write_bytes(output / "comparison.png", figure)
    if len(rows) > 1:
        write_bytes(output / "differences.png", draw_differences(rows))
    if priced(report):
        write_bytes(output / "costs.png", draw_costs(report))
    with whole_file(output / "per_query.parquet") as stream:
        parquet.write_table(per_query_table({"system": rows}), stream)
    write_pages(output, "comparison", report.title, _sections(report, rows))
    write_text(output / "comparison.json", report.model_dump_json(indent=2) + "\n")


def comparison_table(systems: Mapping[str, Mapping[str, EvaluationResult]]) -> str:
    """Return the means by system and measure as plain text."""
    rows = labelled(systems)
    measures = list(next(iter(rows.values())).mean)
    return format_table([[label, *row.mean.values()] for label, row in rows.items()], ["system", *measures])


def lettered_table(report: ComparisonReport) -> str:
    """Return the means as plain text, with the letters of the systems that each is significantly better than."""
    means = labelled(report.measures)
    letters = _letters(report)
    cells = [
        [f"{letters[label]} {label}", *(f"{value:.4f} {_marks(report, m, label)}".rstrip() for m, value in row.items())]
        for label, row in means.items()
    ]
    table = format_table(cells, ["system", *next(iter(means.values()))])
    differing = differing_conditions(report.conditions)
    notes = [f"note: {text}" for text in report.notes]
    if differing:
        notes.append(f"note: conditions differ: {', '.join(differing)}")
    return "\n".join([table, "", _note(report), *(f"warning: {text}" for text in report.warnings), *notes])


def _sections(report: ComparisonReport, rows: Mapping[str, EvaluationResult]) -> list[Section]:
    warnings = [f"Warning: {text}." for text in report.warnings]
    notes = [f"Note: {text}." for text in report.notes]
    sections = [Section("Conditions", [*warnings, *notes, *_conditions(report)])] if report.conditions else []
    sections.append(Section("Measures", [means_of(report), *_ties(report)]))
    picture = Picture("comparison.png", "Figure", f"{summary_of(report.queries)}.")
    sections.append(Section("Intervals", [_intervals(report), picture]))
    if len(rows) > 1:
        measure, (best, *_) = _by_mean(rows)
        drawn = f"{measure} of each system less that of {best}, by query, in order."
        differences: list[Block] = [
            _pairs(report, rows),
            _differing(rows),
            Picture("differences.png", "Differences", drawn),
        ]
        sections.append(Section("Where they differ", differences))
    if priced(report):
        drawn = f"{_first_measure(report)} against the stored bytes of a passage and the time of a query."
        sections.append(Section("Quality and cost", [Picture("costs.png", "Costs", drawn)]))
    return [*sections, Section("Command", [Command(report.command)])]


def _conditions(report: ComparisonReport) -> list[Block]:
    rows = conditions_table(report.conditions)
    differing = [name for name, texts in rows.items() if len({*texts}) > 1]
    frame = pd.DataFrame([[name, *texts] for name, texts in rows.items()], columns=["condition", *report.conditions])
    caption = (
        "Conditions of each system; those that differ come first. ? is unknown. K_q and K_p are maxima for "
        "methods without slots. Milliseconds are the median of 20 queries, each encoded and searched alone."
    )
    rules = frozenset({len(differing)}) if 0 < len(differing) < len(rows) else frozenset[int]()
    return [Table("Conditions", caption, frame, rules=rules)]


def _ties(report: ComparisonReport) -> list[Block]:
    if report.ties is None:
        return []
    rows = [
        [system, measure, *map(points, values)]
        for system, ranges in report.ties.items()
        for measure, values in ranges.items()
    ]
    if not rows:
        return ["The order of passages with equal scores changes none of these means."]
    caption = (
        "Means over all orders of passages with equal scores; tables order them by id. The expected value is the mean "
        "over 20 random orders."
    )
    frame = pd.DataFrame(rows, columns=["system", "measure", "lowest", "expected", "highest"])
    return [Table("Ties", caption, frame, n_labels=2)]


def _pairs(report: ComparisonReport, rows: Mapping[str, EvaluationResult]) -> Table:
    measure, (best, *_) = _by_mean(rows)
    cells = [
        [pair.other, with_interval(pair.mean, pair.interval), p_value(pair.p), points(pair.detectable)]
        for pair in sorted(report.differences[measure], key=lambda pair: pair.mean)
        if pair.system == best
    ]
    caption = (
        f"{measure} of {best} less that of each other system, with bootstrap 95% intervals; p by the paired "
        f"{TESTS[report.test]}, corrected by Holm for all pairs; and the smallest difference that a paired t-test "
        "finds with a probability of 80% on these queries."
    )
    return Table("Pairs", caption, pd.DataFrame(cells, columns=["less", "difference", "p", "detectable"]))


def means_of(report: ComparisonReport) -> Table:
    """Return the means as a table, with the letters."""
    means = labelled(report.measures)
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
    means, intervals = labelled(report.measures), labelled(report.intervals)
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
        ranks = np.arange(len(differences))
        for sign, colour in ((-1, RED), (1, BLUE)):
            one_side = np.where(np.sign(differences) == sign, differences, 0.0)
            panel.fill_between(ranks, one_side, step="mid", color=colour, linewidth=0, zorder=2)
        panel.axhline(0, color=BASE, linewidth=0.8, zorder=3)
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        panel.set_title(label if len(label) <= _LONGEST else f"{label[:_LONGEST]}…", loc="left", fontsize=9, color=INK)
        panel.set_xlabel(f"{wins:,} better, {losses:,} worse", fontsize=8.5, color=INK)
        panel.set_xticks([])
        quiet(panel, "y")
    return png(figure)


def priced(report: ComparisonReport) -> dict[str, Conditions]:
    """Return the systems whose costs are known, if there are at least two."""
    known = {
        row: one
        for row, one in report.conditions.items()
        if one.bytes_per_passage is not None and one.milliseconds is not None
    }
    return known if len(known) > 1 else {}


def draw_costs(report: ComparisonReport) -> bytes:
    """Return a PNG with the first measure against bytes per passage and milliseconds per query, on log scales."""
    known, means, letters = priced(report), labelled(report.measures), _letters(report)
    measure = _first_measure(report)
    legend = ", ".join(f"{letters[row]} {row}" for row in known)
    subtitle = legend if len(legend) <= _LONGEST_LEGEND else "letters as in the table of measures"
    figure, panels = panel_figure(2, 2, (3.6, 2.8), f"{measure} and cost", subtitle, share_y=True)
    for panel, name, label in zip(panels, ("bytes_per_passage", "milliseconds"), _COSTS, strict=True):
        for row, one in known.items():
            cost = getattr(one, name)
            panel.plot(cost, means[row][measure], "o", color=BLUE, markersize=5, zorder=3)
            panel.annotate(
                letters[row],
                (cost, means[row][measure]),
                (4, 4),
                textcoords="offset points",
                fontsize=9,
                color=INK,
            )
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        panel.minorticks_off()
        panel.set_xlabel(label, fontsize=8.5, color=INK)
        panel.margins(0.15)
        quiet(panel, "y")
    panels[0].set_ylabel(measure, fontsize=8.5, color=INK)
    return png(figure)


def _first_measure(report: ComparisonReport) -> str:
    return next(iter(next(iter(labelled(report.measures).values()))))


def _by_mean(rows: Mapping[str, EvaluationResult]) -> tuple[str, list[str]]:
    measure = next(iter(next(iter(rows.values())).mean))
    return measure, sorted(rows, key=lambda label: -rows[label].mean[measure])


def _marks(report: ComparisonReport, measure: str, label: str) -> str:
    letters = _letters(report)
    return "".join(letters[worse] for worse in report.better_than.get(measure, {}).get(label, ()))


def _letters(report: ComparisonReport) -> dict[str, str]:
    return dict(zip(labelled(report.measures), string.ascii_lowercase, strict=False))


def _note(report: ComparisonReport) -> str:
    return (
        "A letter names a system that this one is significantly better than: p < .05, two-sided paired "
        f"{TESTS[report.test]}, corrected by Holm for all pairs."
    )


def labelled(systems: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return the values by row: the system's name, followed by the mode if it has several."""
    return {
        system if len(modes) == 1 else f"{system} {mode}": value
        for system, modes in systems.items()
        for mode, value in modes.items()
    }

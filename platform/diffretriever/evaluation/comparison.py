"""Several systems on the same queries: `comparison.json`, `comparison.md`, `comparison.png`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.report import INTERVAL_NOTE, draw_measures, interval_table, intervals_of, summary_of
from diffretriever.evaluation.tables import command_blocks, format_table
from diffretriever.files import write_bytes, write_text
from schemas.evaluate import ComparisonReport
from schemas.places import StorePath

_T = TypeVar("_T")


def write_comparison(
    output: Path | StorePath, title: str, systems: Mapping[str, Mapping[str, EvaluationResult]], *, command: str
) -> ComparisonReport:
    """Write the three files into folder `output`, each whole or not at all, and return what is in the JSON.

    Equal inputs give equal bytes, but for `created` in the JSON.

    Args:
        output: folder; made if it is not there, files of an earlier comparison are replaced.
        title: what was compared.
        systems: results by system and mode, at least one.
        command: the command line.

    Raises:
        ValueError: systems were measured on different queries or by different measures.
    """
    _check_comparable(systems)
    report = _report(title, systems, command)
    means, intervals = _labelled(report.measures), _labelled(report.intervals)
    figure = draw_measures(means, intervals, title, summary_of(report.queries))
    write_bytes(output / "comparison.png", figure)
    page = [
        f"# {title}",
        f"Means over the same {report.queries:,} queries, {INTERVAL_NOTE}.",
        interval_table([(label, means[label], intervals[label]) for label in means], "system"),
        "![Means with intervals](comparison.png)",
        *command_blocks(command),
    ]
    write_text(output / "comparison.md", "\n\n".join(page) + "\n")
    write_text(output / "comparison.json", report.model_dump_json(indent=2) + "\n")
    return report


def comparison_table(systems: Mapping[str, Mapping[str, EvaluationResult]]) -> str:
    """Return the means by system and measure as plain text, for the terminal."""
    rows = _labelled(systems)
    measures = list(next(iter(rows.values())).mean)
    return format_table([[label, *row.mean.values()] for label, row in rows.items()], ["system", *measures])


def _check_comparable(systems: Mapping[str, Mapping[str, EvaluationResult]]) -> None:
    rows = _labelled(systems)
    first = next(iter(rows))
    for label, row in rows.items():
        if list(row.mean) != list(rows[first].mean):
            raise ValueError(f"'{label}' and '{first}' have different measures: evaluate both with the same ones")
        measure = next(iter(row.mean))
        if row.per_query[measure].keys() != rows[first].per_query[measure].keys():
            raise ValueError(f"'{label}' and '{first}' have different queries: evaluate both with the same qrels")


def _report(title: str, systems: Mapping[str, Mapping[str, EvaluationResult]], command: str) -> ComparisonReport:
    first = next(iter(_labelled(systems).values()))
    return ComparisonReport(
        title=title,
        measures={system: {mode: r.mean for mode, r in modes.items()} for system, modes in systems.items()},
        intervals={system: intervals_of(modes) for system, modes in systems.items()},
        queries=len(next(iter(first.per_query.values()))),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )


def _labelled(systems: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Name each row: the system, and its mode where the system has several."""
    return {
        system if len(modes) == 1 else f"{system} {mode}": value
        for system, modes in systems.items()
        for mode, value in modes.items()
    }

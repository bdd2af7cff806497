"""The report of one evaluation: `metrics.json`, `per_query.parquet`, `report.md` and `report.png`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from matplotlib.axes import Axes
from pyarrow import parquet

from diffretriever.core.files import whole_file, write_bytes, write_text
from diffretriever.evaluation.conditions import conditions_table
from diffretriever.evaluation.figures import BASE, BLUE, GREEN, GRID, INK, MUTED, ORANGE, RED, panel_figure, png
from diffretriever.evaluation.formats.tables import Cell, Interval, command_blocks, format_table, markdown_table
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.statistics import bootstrap_interval
from diffretriever.schemas.evaluate import EvaluateJob, EvaluationReport
from diffretriever.schemas.locations import StorePath

if TYPE_CHECKING:
    from diffretriever.index.table import PassageIndex

INTERVAL_NOTE = "with bootstrap 95% intervals (1,000 resamples)"
_EXTREMES = 5
_LONGEST_TEXT = 100
_COLUMNS = 3
_PANEL_INCHES = 2.9
_BAR_INCHES = 0.38
_COLOURS = (BLUE, ORANGE, GREEN, "#8c6bb1", RED, MUTED)
_OVER_GRID = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}


def evaluation_report(results: Mapping[str, EvaluationResult], **facts: Any) -> EvaluationReport:
    """Return the report of one or more modes over the same queries; `facts` are its other fields."""
    first = next(iter(results.values()))
    return EvaluationReport(
        measures={mode: result.mean for mode, result in results.items()},
        intervals=intervals_of(results),
        queries=len(next(iter(first.per_query.values()))),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    )


def index_facts(index: PassageIndex, job: EvaluateJob) -> dict[str, Any]:
    """Return the report's fields on the index, for a resolved job."""
    manifest = index.manifest
    return {
        "retriever": manifest.title,
        "config": {**job.model_dump(mode="json"), "retriever": manifest.retriever.model_dump(mode="json")},
        "split": job.split,
        "fingerprint": manifest.fingerprint,
        "rows": len(index),
    }


def write_evaluation(
    output: Path | StorePath,
    report: EvaluationReport,
    results: Mapping[str, EvaluationResult],
    query_texts: Mapping[str, str] | None = None,
) -> None:
    """Write `metrics.json`, `per_query.parquet`, `report.md` and `report.png` atomically.

    Equal inputs give equal bytes. Creates the folder and replaces earlier files. `query_texts` maps query id to text.
    """
    figure = draw_measures(report.measures, report.intervals, title_of(report), summary_of(report.queries))
    write_bytes(output / "report.png", figure)
    with whole_file(output / "per_query.parquet") as stream:
        parquet.write_table(per_query_table({"mode": results}), stream)
    write_text(output / "report.md", evaluation_page(report, results, query_texts or {}))
    write_text(output / "metrics.json", report.model_dump_json(indent=2) + "\n")


def evaluation_table(results: Mapping[str, EvaluationResult]) -> str:
    """Return the means by mode and measure as plain text."""
    measures = list(next(iter(results.values())).mean)
    return format_table([[mode, *result.mean.values()] for mode, result in results.items()], ["mode", *measures])


def per_query_table(results: Mapping[str, Mapping[str, EvaluationResult]]) -> pa.Table:
    """Return a row per query, label and measure; `results` are by label under the column's name."""
    ((column, by_label),) = results.items()
    rows = [
        (query, label, measure, value)
        for label, result in by_label.items()
        for measure, values in result.per_query.items()
        for query, value in values.items()
    ]
    columns = zip(*rows, strict=True) if rows else [()] * 4
    types = [pa.string(), pa.string(), pa.string(), pa.float64()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, ["query_id", column, "measure", "value"])


def intervals_of(results: Mapping[str, EvaluationResult]) -> dict[str, dict[str, Interval]]:
    """Return the interval of every mean, by label and measure."""
    return {
        label: {measure: _interval(result, measure) for measure in result.per_query}
        for label, result in results.items()
    }


def _interval(result: EvaluationResult, measure: str) -> Interval:
    low, high = bootstrap_interval(result.per_query[measure].values())
    return low * result.scale(measure), high * result.scale(measure)


def title_of(report: EvaluationReport) -> str:
    """Return a line that names system and collection."""
    suffix = "" if report.collection is None else f" on {report.collection}"
    return f"{report.retriever}{suffix}" + ("" if report.split is None else f" ({report.split})")


def summary_of(n_queries: int) -> str:
    """Return a figure's subtitle: number of queries and kind of intervals."""
    return f"{n_queries:,} queries, means with bootstrap 95% intervals"


def evaluation_page(
    report: EvaluationReport, results: Mapping[str, EvaluationResult], query_texts: Mapping[str, str]
) -> str:
    """Return the page of one evaluation: settings, measures, extreme queries and the command."""
    parts = [
        f"# {title_of(report)}",
        markdown_table(_facts(report), ["condition", "value"]),
        "## Measures",
        f"Means over all {report.queries:,} queries of the qrels, {INTERVAL_NOTE}.",
        markdown_table(_measures(report), ["mode", *next(iter(report.measures.values()))]),
        "![Means with intervals](report.png)",
        *(f"Warning: {text}." for text in report.warnings),
        *(f"Note: {text}." for text in report.notes),
        *_extreme_queries(results, query_texts),
        *command_blocks(report.command, report.config),
    ]
    return "\n\n".join(parts) + "\n"


def _measures(report: EvaluationReport) -> list[list[Cell]]:
    return [
        [mode, *(f"{means[m]:.4f} [{low:.3f}, {high:.3f}]" for m, (low, high) in report.intervals[mode].items())]
        for mode, means in report.measures.items()
    ]


def _facts(report: EvaluationReport) -> list[list[Cell]]:
    facts: dict[str, str | None] = {
        "retriever": report.retriever,
        "collection": report.collection,
        "split": report.split,
        "queries": f"{report.queries:,}",
        "passages": None if report.rows is None else f"{report.rows:,}",
        "index fingerprint": report.fingerprint,
        "selector": report.selector,
        **{f"weights of {fusion}": _listed(weights) for fusion, weights in report.weights.items()},
    }
    rows: list[list[Cell]] = [[name, value] for name, value in facts.items() if value is not None]
    for name, texts in conditions_table(report.conditions).items():
        by_mode = ", ".join(f"{mode} {text}" for mode, text in zip(report.conditions, texts, strict=True))
        if name != "retriever":
            # The index may hold passages of other collections too.
            label = "of the collection" if name == "passages" else name
            rows.append([label, texts[0] if len({*texts}) == 1 else by_mode])
    return rows


def _listed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{run} {weight:.3g}" for run, weight in weights.items())


def _extreme_queries(results: Mapping[str, EvaluationResult], query_texts: Mapping[str, str]) -> list[str]:
    """Rank queries by the first measure in the best mode; ties by their mean over modes."""
    measure = next(iter(next(iter(results.values())).mean))
    best = max(results, key=lambda mode: results[mode].mean[measure])
    values = {mode: result.per_query[measure] for mode, result in results.items()}
    over_modes = {query: sum(v[query] for v in values.values()) / len(values) for query in values[best]}
    hardest = sorted(values[best], key=lambda query: (values[best][query], over_modes[query], query))
    easiest = sorted(values[best], key=lambda query: (-values[best][query], -over_modes[query], query))

    def table(queries: list[str]) -> str:
        rows: list[list[Cell]] = [
            [q, _short(query_texts.get(q, "")), *(v[q] for v in values.values())] for q in queries[:_EXTREMES]
        ]
        return markdown_table(rows, ["id", "query", *values])

    where = f"by {measure}" if len(values) == 1 else f"by {measure} of {best}, the best mode"
    return [f"## Hardest queries {where}", table(hardest), f"## Easiest queries {where}", table(easiest)]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"


def draw_measures(
    means: Mapping[str, Mapping[str, float]],
    intervals: Mapping[str, Mapping[str, Interval]],
    title: str,
    subtitle: str,
) -> bytes:
    """Return a PNG with a panel per measure and a bar per label (mode or system).

    `means` is label → measure → mean, with the same measures for all labels; `intervals` are error bars (low, high).
    """
    labels, measures = list(means), list(next(iter(means.values())))
    size = _PANEL_INCHES, 0.6 + _BAR_INCHES * len(labels)
    margin = 0.45 + 0.085 * max(map(len, labels)), 0.0
    figure, panels = panel_figure(len(measures), _COLUMNS, size, title, subtitle, margin_inches=margin, share_y=True)
    for panel, measure in zip(panels, measures, strict=True):
        rows = [(label, means[label][measure], intervals[label][measure]) for label in labels]
        _draw_panel(panel, measure, rows)
    return png(figure)


def _draw_panel(panel: Axes, measure: str, rows: list[tuple[str, float, Interval]]) -> None:
    furthest = max(max(high, mean) for _, mean, (_, high) in rows)
    # Measures of 0..1 share one scale, so that panels can be read against each other.
    right = 1.0 if furthest <= 1 else furthest
    for row, (_, mean, (low, high)) in enumerate(rows):
        panel.barh(row, mean, height=0.62, color=_COLOURS[row % len(_COLOURS)], zorder=2)
        panel.plot([low, high], [row, row], color=INK, linewidth=1.3, solid_capstyle="butt", zorder=3)
        x = max(high, mean) + 0.02 * right
        panel.text(x, row, f"{mean:.3f}", va="center", fontsize=9, color=INK, bbox=_OVER_GRID)
    panel.set_title(measure, loc="left", fontsize=10, color=INK)
    panel.set_xlim(0, 1.2 * right)
    panel.set_xticks([0, 0.25 * right, 0.5 * right, 0.75 * right, right])
    panel.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=9.5, color=INK)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.tick_params(axis="both", length=0)
    panel.tick_params(axis="x", labelsize=8, labelcolor=MUTED)
    panel.grid(axis="x", color=GRID, linewidth=0.8, zorder=0)
    panel.set_axisbelow(True)
    for side in ("top", "right", "bottom"):
        panel.spines[side].set_visible(False)
    panel.spines["left"].set_color(BASE)

"""The pages of reports, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.tables import Cell, markdown_table
from schemas.report import EvaluationReport

INTERVAL_NOTE = "with bootstrap 95% intervals (1,000 resamples)"
_EXTREMES = 5
_LONGEST_TEXT = 100


def title_of(report: EvaluationReport) -> str:
    """Return one line: what was measured on what."""
    place = "" if report.collection is None else f" on {report.collection}"
    return f"{report.retriever}{place}" + ("" if report.split is None else f" ({report.split})")


def summary_of(n_queries: int) -> str:
    """Return the line under a figure's title: how many queries, and what the intervals are."""
    return f"{n_queries:,} queries, means with bootstrap 95% intervals"


def evaluation_page(
    report: EvaluationReport, results: Mapping[str, EvaluationResult], query_texts: Mapping[str, str]
) -> str:
    """Return the page of one evaluation: what was run, its measures, extreme queries, how to repeat it."""
    parts = [
        f"# {title_of(report)}",
        markdown_table(_facts(report), ["what", "value"]),
        "## Measures",
        f"Means over all {report.queries:,} queries of the qrels, {INTERVAL_NOTE}.",
        interval_table([(mode, *_values(report, mode)) for mode in report.measures], "mode"),
        "![Means with intervals](report.png)",
        *_extreme_queries(results, query_texts),
        "## Command",
        f"```\n{report.command}\n```",
        "<details><summary>Resolved config</summary>",
        f"```yaml\n{yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True)}```",
        "</details>",
    ]
    return "\n\n".join(parts) + "\n"


def interval_table(rows: list[tuple[str, Mapping[str, float], Mapping[str, tuple[float, float]]]], first: str) -> str:
    """Return a Markdown table of `mean [low, high]`: a row for each (label, means, intervals)."""
    measures = list(rows[0][1])
    cells: list[list[Cell]] = [
        [label, *(f"{means[m]:.4f} [{intervals[m][0]:.3f}, {intervals[m][1]:.3f}]" for m in measures)]
        for label, means, intervals in rows
    ]
    return markdown_table(cells, [first, *measures])


def _values(report: EvaluationReport, mode: str) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    return report.measures[mode], report.intervals[mode]


def _facts(report: EvaluationReport) -> list[list[Cell]]:
    facts: list[tuple[str, str | None]] = [
        ("retriever", report.retriever),
        ("collection", report.collection),
        ("split", report.split),
        ("queries", f"{report.queries:,}"),
        ("passages", None if report.rows is None else f"{report.rows:,}"),
        ("index fingerprint", report.fingerprint),
    ]
    return [[name, value] for name, value in facts if value is not None]


def _extreme_queries(results: Mapping[str, EvaluationResult], query_texts: Mapping[str, str]) -> list[str]:
    """Return two tables: the queries with the lowest and the highest value of the first measure.

    They are sought in the mode with the best mean; queries that tie there are told apart by their mean over
    modes.
    """
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

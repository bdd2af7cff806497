"""The page of a pruning curve, in Markdown, and its table for the terminal."""

from __future__ import annotations

import yaml

from diffretriever.analysis.numbers import NOTHING, level_with_interval, signed
from diffretriever.evaluation.tables import Cell, format_table, markdown_table
from diffretriever.statistics.significance import ALPHA
from schemas.prune import PrunePoint, PruneReport, PruneTest

_INTRODUCTION = (
    "Slots of passages are dropped from the stored vectors; nothing is encoded again, and the sparse side stays as it "
    "is. A slot's cost is one less its cosine to the nearest slot that stays, which bounds what a query vector can "
    "lose. `same number` drops the cheapest slots of every passage until k are left. `threshold` drops the cheapest of "
    "all passages until as many are left altogether, so that passages with redundant slots lose more. `first slots` "
    "keeps the first k, `encoded` is the sweep's own index of K_p = k."
)
_TESTS = (
    "Differences of means; † p < .05, paired two-sided t-test over queries, corrected by Holm for all rows of a column."
)


def prune_page(report: PruneReport) -> str:
    """Return the whole page."""
    facts: list[list[Cell]] = [
        ["index", report.index],
        ["retriever", report.retriever],
        ["encoder fingerprint", report.fingerprint],
        ["passages", f"{report.passages:,}, at most {report.passage_budget} slots each"],
        ["queries", f"{report.queries:,}, K_q = {report.query_budget}"],
    ]
    parts = [
        "# Fewer slots for passages that need fewer",
        markdown_table(facts, ["what", "value"]),
        _INTRODUCTION,
        "![Effectiveness by storage](curve.png)",
        markdown_table(_rows(report), _columns(report)),
        _TESTS,
        "## Command",
        f"```\n{report.command}\n```",
        "<details><summary>Resolved config</summary>",
        f"```yaml\n{yaml.safe_dump(report.config, sort_keys=False, allow_unicode=True)}```",
        "</details>",
    ]
    return "\n\n".join(parts) + "\n"


def prune_table(report: PruneReport) -> str:
    """Return the points as plain text."""
    return format_table(_rows(report), _columns(report))


def _columns(report: PruneReport) -> list[str]:
    return ["rule", "mean K_p", "MB", f"dense {report.measure}", "less all", "less first k", "less encoded k"]


def _rows(report: PruneReport) -> list[list[Cell]]:
    return [_row(point) for point in report.points]


def _row(point: PrunePoint) -> list[Cell]:
    return [
        point.rule,
        f"{point.average:.2f}",
        f"{point.bytes / 1e6:.2f}",
        level_with_interval(point.mean, point.interval),
        _test(point.against_all),
        _test(point.against_first),
        _test(point.against_encoded),
    ]


def _test(test: PruneTest | None) -> str:
    if test is None:
        return NOTHING
    return f"{signed(test.difference)}{'†' if test.t_test < ALPHA else ''}"

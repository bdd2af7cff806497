"""The pruning curve of an index: `curve.md`, `curve.png` and `curve.json`, which depend on neither date nor folder."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffretriever.core.files import write_bytes, write_text
from diffretriever.evaluation.figures import (
    BLUE,
    GREEN,
    GREY,
    HEAD_INCHES,
    INK,
    ORANGE,
    headed_figure,
    label_curve,
    png,
    quiet,
)
from diffretriever.evaluation.formats.tables import (
    NOTHING,
    Cell,
    command_blocks,
    format_table,
    level_with_interval,
    markdown_table,
    signed,
)
from diffretriever.evaluation.measures import parse_measures
from diffretriever.evaluation.statistics import ALPHA
from diffretriever.schemas.base import Model
from diffretriever.schemas.locations import IndexLocation
from diffretriever.studies.budgets.pruned_index import write_pruned
from diffretriever.studies.budgets.pruning import (
    PrunePoint,
    PruneSource,
    PruneTest,
    curve_points,
    kept_by,
    open_source,
    removals,
)
from diffretriever.studies.budgets.pruning_config import PruneSlotsJob

_STYLES = {
    "threshold": (BLUE, "o", "-"),
    "same number": (GREEN, "s", "-"),
    "first slots": (GREY, "v", "--"),
    "encoded": (ORANGE, "D", ":"),
}
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


class PruneReport(Model):
    """The file `curve.json`."""

    index: IndexLocation
    """Where it lies."""
    retriever: str
    fingerprint: str
    """Of the index."""
    queries: int
    """With judgements."""
    query_budget: int
    """K_q."""
    passage_budget: int
    """K_p, the most slots of a passage."""
    passages: int
    measure: str
    points: tuple[PrunePoint, ...]
    """By rule, then rising k."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""


def prune_slots(job: PruneSlotsJob, command: str) -> PruneReport:
    """Write the curve into the job's output folder and return it; the vectors of the index must fit in memory."""
    parse_measures([job.measure])
    source = open_source(job)
    manifest = source.index.manifest
    most = int(np.diff(source.offsets).max())
    report = PruneReport(
        index=source.index.uri,
        retriever=manifest.title,
        fingerprint=manifest.fingerprint,
        queries=len(source.qrels),
        query_budget=source.query_budget,
        passage_budget=most,
        passages=len(source.passage_ids),
        measure=job.measure,
        points=tuple(curve_points(source, _kept(job, source, most), job.measure)),
        command=command,
        # Where a report lies is no part of it: the same sweeps give the same bytes anywhere.
        config=job.model_dump(mode="json", exclude={"output", "pruned"}),
    )
    if job.pruned is not None:
        write_pruned(
            source.index,
            kept_by(job.rule, source, removals(source.vectors_NH, source.offsets), job.keep[0]),
            job.pruned,
        )
    write_bytes(job.output / "curve.png", draw_pruning(report))
    write_text(job.output / "curve.json", report.model_dump_json(indent=2) + "\n")
    write_text(job.output / "curve.md", prune_page(report))
    write_text(job.output / "prune_slots.yaml", job.to_yaml())
    return report


def _kept(job: PruneSlotsJob, source: PruneSource, most: int) -> tuple[int, ...]:
    kept = tuple(sorted(set(job.keep))) or tuple(2**n for n in range(most.bit_length()) if 2**n < most)
    if not kept or kept[-1] >= most:
        raise ValueError(
            f"{source.index.uri} has passages of {most} slots at most: --keep must be below that, and an index of one "
            "slot cannot be pruned"
        )
    return kept


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
        markdown_table([_row(point) for point in report.points], _columns(report.measure)),
        _TESTS,
        *command_blocks(report.command, report.config),
    ]
    return "\n\n".join(parts) + "\n"


def prune_table(report: PruneReport) -> str:
    """Return the points as plain text."""
    return format_table([_row(point) for point in report.points], _columns(report.measure))


def _columns(measure: str) -> list[str]:
    return ["rule", "mean K_p", "MB", f"dense {measure}", "less all", "less first k", "less encoded k"]


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


def draw_pruning(report: PruneReport) -> bytes:
    """Return a PNG with a line for each rule; all of them end in the passages with nothing pruned."""
    subtitle = (
        f"{report.queries:,} queries at $K_q$ = {report.query_budget}, {report.passages:,} passages; 95% intervals"
    )
    figure = headed_figure(6.4, HEAD_INCHES + 3.6, f"What passage slots buy, dense {report.measure}", subtitle)
    panel = figure.subplots()
    quiet(panel, "y")
    whole = next(point for point in report.points if point.rule == "all")
    panel.axhspan(*whole.interval, color=GREY, alpha=0.15, zorder=0, linewidth=0)
    for rule, (colour, marker, line) in _STYLES.items():
        own = [point for point in report.points if point.rule == rule]
        if not own:
            continue
        ends = [*own, whole]
        panel.plot(
            [point.average for point in ends], [point.mean for point in ends], color=colour, marker=marker,
            linestyle=line, linewidth=1.6, markersize=5, label=rule, zorder=3,
        )  # fmt: skip
    panel.plot([whole.average], [whole.mean], color=INK, marker="*", markersize=11, linestyle="none", zorder=4)
    x_label = f"slots a passage has on average; one is {whole.bytes / whole.average / 1e6:.2f} MB of vectors"
    label_curve(panel, sorted({point.keep for point in report.points}), x_label, report.measure)
    return png(figure)

"""Paired tests between budgets and between ways of scoring.

Legend: C cells, N queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes

from diffretriever.evaluation.budgets.data import AnalysisData, groups, smallest
from diffretriever.evaluation.figures import BLUE, GREY, HEAD_INCHES, INK, ORANGE, headed_figure, png, quiet
from diffretriever.evaluation.statistics import bootstrap_average, t_test_p
from diffretriever.evaluation.tables import NOTHING, Cell, level_with_interval, markdown_table, p_value, points
from schemas.analyse import AnalysisReport, ScoringVariant
from schemas.budget import Budget
from schemas.sweep import SweepMode

_Variant: TypeAlias = Literal["single", "pooled slots", "MaxSim"]


def scoring(data: AnalysisData) -> Iterator[ScoringVariant]:
    """Yield what single, mean-pooled and MaxSim scoring reach; nothing where slots were not pooled."""
    if not data.has_pooled_slots:
        return
    variants: list[tuple[_Variant, SweepMode, Budget]] = [
        ("single", "dense", smallest(data)),
        ("pooled slots", "pooled-slots", data.fixed),
        ("MaxSim", "dense", data.fixed),
    ]
    for label, names in groups(data):
        before = None
        for variant, mode, budget in variants:
            samples = [data.outcomes[name, mode].at(budget) for name in names]
            pooled_N = np.concatenate(samples)
            yield ScoringVariant(
                collection=label,
                variant=variant,
                mean=float(np.mean([sample.mean() for sample in samples])),
                interval=bootstrap_average(samples),
                against_previous=None if before is None else t_test_p(pooled_N - before),
            )
            before = pooled_N


_COLUMNS = 5


_PANEL_WIDTH, _PANEL_HEIGHT = 2.2, 2.4


_COLOURS = {"single": GREY, "pooled slots": ORANGE, "MaxSim": BLUE}


def draw_scoring(report: AnalysisReport) -> bytes:
    """Return a PNG with a panel for each collection and a bar for each variant in it."""
    collections = list(dict.fromkeys(variant.collection for variant in report.scoring))
    n_columns = min(_COLUMNS, len(collections))
    n_rows = -(-len(collections) // n_columns)
    title = f"Dense {report.measure} by way of scoring"
    subtitle = f"several slots at {report.fixed}, means with bootstrap 95% intervals"
    figure = headed_figure(0.4 + n_columns * _PANEL_WIDTH, HEAD_INCHES + n_rows * _PANEL_HEIGHT, title, subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flatten()
    for panel, name in zip(panels, collections, strict=False):
        _draw(panel, [variant for variant in report.scoring if variant.collection == name])
    for panel in panels[len(collections) :]:
        panel.set_visible(False)
    return png(figure)


def _draw(panel: Axes, variants: Sequence[ScoringVariant]) -> None:
    quiet(panel, "y")
    for place, variant in enumerate(variants):
        panel.bar(place, variant.mean, 0.64, color=_COLOURS[variant.variant], zorder=2)
        panel.plot([place, place], variant.interval, color=INK, linewidth=1.4, zorder=3)
        panel.annotate(
            points(variant.mean), (place, variant.interval[1]), (0, 4), textcoords="offset points", ha="center",
            fontsize=9, color=INK,
        )  # fmt: skip
    panel.set_title(variants[0].collection, loc="left", fontsize=10, color=INK)
    panel.set_xticks(range(len(variants)), [variant.variant for variant in variants])
    panel.margins(x=0.08, y=0.14)


def _scoring_section(report: AnalysisReport) -> Iterator[str]:
    yield "## Where the gains come from"
    yield (
        f"Dense scoring of a single representation, of the mean of several at {report.fixed}, and of the same several "
        "by MaxSim. p: paired t-test against the line above."
    )
    yield "![Dense scoring variants](scoring.png)"
    rows: list[list[Cell]] = [
        [
            variant.collection,
            variant.variant,
            level_with_interval(variant.mean, variant.interval),
            NOTHING if variant.against_previous is None else p_value(variant.against_previous),
        ]
        for variant in report.scoring
    ]
    yield markdown_table(rows, ["queries", "scoring", report.measure, "p"])

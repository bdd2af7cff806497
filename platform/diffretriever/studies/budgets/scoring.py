"""Where the gains come from: single, mean-pooled and MaxSim scoring of dense representations (paper §6.1, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self, TypeAlias

import numpy as np
from matplotlib.axes import Axes

from diffretriever.evaluation.figures import BLUE, GREY, INK, ORANGE, panel_figure, png, quiet
from diffretriever.evaluation.formats.tables import (
    NOTHING,
    Cell,
    Interval,
    level_with_interval,
    markdown_table,
    p_value,
    points,
)
from diffretriever.evaluation.statistics import bootstrap_average, t_test_p
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis import AnalysisData, AnalysisFacts, Section, mean_of_means

_Variant: TypeAlias = Literal["single", "pooled slots", "MaxSim"]

_COLOURS: dict[_Variant, str] = {"single": GREY, "pooled slots": ORANGE, "MaxSim": BLUE}


class ScoringVariant(Model):
    """One way to score dense representations (paper §6.1)."""

    collection: str
    variant: _Variant
    mean: float
    interval: Interval
    against_previous: float | None
    """p of the paired t-test against the variant before; None for the first."""


class ScoringSection(Section):
    """Where the gains come from."""

    scoring: tuple[ScoringVariant, ...]
    """Of each set, then the average where there are several. Empty where the sweeps have no pooled slots."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Average what each way of scoring reaches, and test it against the one before."""
        if not data.has_pooled_slots:
            return cls(scoring=())
        return cls(scoring=tuple(v for label, names in data.groups() for v in _variants(data, label, names)))

    def figures(self, data: AnalysisData) -> dict[str, bytes]:
        """Draw a panel for each set and a bar for each variant in it."""
        if not self.scoring:
            return {}
        title = f"Dense {data.measure} by way of scoring"
        subtitle = f"several slots at {data.fixed}, means with bootstrap 95% intervals"
        groups = data.groups()
        figure, panels = panel_figure(
            len(groups), 5, (2.2, 2.4), title, subtitle, margin_inches=(0.4, 0.0), share_y=True
        )
        for panel, (label, _) in zip(panels, groups, strict=True):
            _draw(panel, [variant for variant in self.scoring if variant.collection == label])
        return {"scoring.png": png(figure)}

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield the figure and a table of the variants."""
        if not self.scoring:
            return
        yield "## Where the gains come from"
        yield (
            f"Dense scoring of a single representation, of the mean of several at {facts.fixed}, and of the same "
            "several by MaxSim. p: paired t-test against the line above."
        )
        yield "![Dense scoring variants](scoring.png)"
        rows: list[list[Cell]] = [
            [
                variant.collection,
                variant.variant,
                level_with_interval(variant.mean, variant.interval),
                NOTHING if variant.against_previous is None else p_value(variant.against_previous),
            ]
            for variant in self.scoring
        ]
        yield markdown_table(rows, ["queries", "scoring", facts.measure, "p"])


def _variants(data: AnalysisData, label: str, names: Sequence[str]) -> Iterator[ScoringVariant]:
    variants: list[tuple[_Variant, SweepMode, Budget]] = [
        ("single", "dense", data.smallest),
        ("pooled slots", "pooled-slots", data.fixed),
        ("MaxSim", "dense", data.fixed),
    ]
    before: np.ndarray | None = None
    for variant, mode, budget in variants:
        samples = [data.outcomes[name, mode].at(budget) for name in names]
        pooled = np.concatenate(samples)
        yield ScoringVariant(
            collection=label,
            variant=variant,
            mean=mean_of_means(samples),
            interval=bootstrap_average(samples),
            against_previous=None if before is None else t_test_p(pooled - before),
        )
        before = pooled


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

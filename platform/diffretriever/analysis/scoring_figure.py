"""The scoring decomposition: single, mean-pooled, MaxSim (paper Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from diffretriever.analysis.numbers import points
from diffretriever.figures import BLUE, GREY, HEAD_INCHES, INK, ORANGE, headed_figure, png, quiet
from schemas.analyse import AnalysisReport, ScoringVariant

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

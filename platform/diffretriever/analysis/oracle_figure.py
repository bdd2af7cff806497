"""What oracles gain over the fixed budget, and how much of it is luck (paper Fig. 5, with controls)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from diffretriever.analysis.numbers import points, signed
from diffretriever.figures import BLUE, GREEN, HEAD_INCHES, INK, MUTED, ORANGE, RED, headed_figure, png, quiet
from schemas.analyse import AnalysisReport, OracleGain
from schemas.sweep import SweepMode

_COLUMNS = 5
_PANEL_WIDTH, _PANEL_HEIGHT = 2.35, 2.75
_SIDES = {"query": ("$K_q$", BLUE), "passage": ("$K_p$", RED), "joint": ("joint", GREEN)}


def draw_oracles(report: AnalysisReport, gains: Sequence[OracleGain]) -> bytes:
    """Return a PNG with a panel for each collection and a bar for each oracle in it; all gains are of one mode."""
    collections = list(dict.fromkeys(gain.collection for gain in gains))
    n_columns = min(_COLUMNS, len(collections))
    n_rows = -(-len(collections) // n_columns)
    title = f"What per-query oracles gain over {report.fixed}, {gains[0].mode} {report.measure}"
    subtitle = "95% bootstrap intervals of the whole gain (black) and of what carries over (white)"
    height = HEAD_INCHES + 0.3 + n_rows * _PANEL_HEIGHT
    figure = headed_figure(0.5 + n_columns * _PANEL_WIDTH, height, title, subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flatten()
    for panel, name in zip(panels, collections, strict=False):
        _draw(panel, [gain for gain in gains if gain.collection == name])
        _draw_others(panel, report, gains[0].mode, name)
    for panel in panels[len(collections) :]:
        panel.set_visible(False)
    keys = [
        Patch(facecolor=MUTED, label="carries over to other budgets"),
        Patch(facecolor="white", edgecolor=MUTED, hatch="////", label="luck (the control)"),
    ]
    figure.legend(handles=keys, loc="outside lower left", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return png(figure)


def _draw(panel: Axes, gains: Sequence[OracleGain]) -> None:
    quiet(panel, "y")
    for place, gain in enumerate(gains):
        colour = _SIDES[gain.side][1]
        carried = gain.carried or 0.0
        start = max(carried, 0.0)
        panel.bar(place, carried, 0.64, color=colour, zorder=2)
        panel.bar(
            place,
            gain.headroom - start,
            0.64,
            bottom=start,
            facecolor="white",
            edgecolor=colour,
            hatch="////",
            zorder=2,
        )
        panel.plot([place, place], gain.headroom_interval, color=INK, linewidth=1.4, zorder=4)
        if gain.carried_interval is not None:
            _whisker(panel, place - 0.2, gain.carried_interval)
        top = gain.headroom_interval[1]
        panel.annotate(
            signed(gain.headroom), (place, top), (0, 4), textcoords="offset points", ha="center", fontsize=9, color=INK,
            fontweight="bold",
        )  # fmt: skip
    panel.axhline(0, color=INK, linewidth=0.9, zorder=5)
    panel.set_title(gains[0].collection, loc="left", fontsize=10, color=INK)
    panel.set_title(f"fixed {points(gains[0].fixed)}", loc="right", fontsize=8.5, color=MUTED)
    panel.set_xticks(range(len(gains)), [_SIDES[gain.side][0] for gain in gains])
    panel.margins(x=0.08, y=0.14)


def _draw_others(panel: Axes, report: AnalysisReport, mode: SweepMode, collection: str) -> None:
    """Draw where other systems lie, on the bars' scale: their means less the fixed budget's."""
    for test in report.against:
        if (test.mode, test.collection, test.side) != (mode, collection, "fixed"):
            continue
        level = -test.difference
        panel.axhline(level, color=ORANGE, linewidth=1.3, linestyle="--", zorder=6)
        panel.annotate(
            f"{test.system} {points(test.system_mean)}", (1.0, level), (-2, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", fontsize=8, color=ORANGE, zorder=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip


def _whisker(panel: Axes, x: float, interval: tuple[float, float]) -> None:
    """Draw an interval that is seen on coloured and on white ground."""
    panel.plot([x, x], interval, color=INK, linewidth=2.6, solid_capstyle="butt", zorder=4)
    panel.plot([x, x], interval, color="white", linewidth=1.2, solid_capstyle="butt", zorder=5)

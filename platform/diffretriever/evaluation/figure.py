"""The figure of a report: means with their intervals, one panel a measure."""

from __future__ import annotations

import io
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

_COLUMNS = 3
_PANEL_INCHES = 2.9
_BAR_INCHES = 0.38
_HEAD_INCHES = 0.68
_COLOURS = ("#3b6ea5", "#e08e45", "#4f9d69", "#8c6bb1", "#c25b56", "#6b7785")
_INK, _MUTED = "#22272e", "#6b7785"
_OVER_GRID = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}


def draw_measures(
    means: Mapping[str, Mapping[str, float]],
    intervals: Mapping[str, Mapping[str, tuple[float, float]]],
    title: str,
    subtitle: str,
) -> bytes:
    """Return a PNG with a bar for each label (mode or system) in a panel for each measure.

    Args:
        means: label → measure → mean; every label has the same measures.
        intervals: label → measure → (low, high), drawn as an error bar.
        title: first line above the panels.
        subtitle: second line.
    """
    labels, measures = list(means), list(next(iter(means.values())))
    n_columns = min(_COLUMNS, len(measures))
    n_rows = -(-len(measures) // n_columns)
    panels_width = 0.45 + 0.085 * max(map(len, labels)) + _PANEL_INCHES * n_columns
    width = max(panels_width, 0.3 + 0.115 * len(title))
    height = _HEAD_INCHES + n_rows * (0.6 + _BAR_INCHES * len(labels))
    below_head = (0.01, 0.01, 0.98, 0.99 - _HEAD_INCHES / height)
    layout = ConstrainedLayoutEngine(rect=below_head, wspace=0.05, hspace=0.08)
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    left = 0.12 / width
    figure.text(left, 1 - 0.12 / height, title, va="top", fontsize=12, fontweight="bold", color=_INK)
    figure.text(left, 1 - 0.38 / height, subtitle, va="top", fontsize=9, color=_MUTED)
    panels = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flatten()
    for panel, measure in zip(panels, measures, strict=False):
        rows = [(label, means[label][measure], intervals[label][measure]) for label in labels]
        _draw_panel(panel, measure, rows)
    for panel in panels[len(measures) :]:
        panel.set_visible(False)
    buffer = io.BytesIO()
    # The version of matplotlib in the file would make equal figures differ.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_panel(panel: Axes, measure: str, rows: list[tuple[str, float, tuple[float, float]]]) -> None:
    """Draw one measure: the first label on top, its value at the end of the bar."""
    furthest = max(max(high, mean) for _, mean, (_, high) in rows)
    # Measures of 0..1 share one scale, so that panels can be read against each other.
    right = 1.0 if furthest <= 1 else furthest
    for row, (_, mean, (low, high)) in enumerate(rows):
        panel.barh(row, mean, height=0.62, color=_COLOURS[row % len(_COLOURS)], zorder=2)
        panel.plot([low, high], [row, row], color=_INK, linewidth=1.3, solid_capstyle="butt", zorder=3)
        panel.text(
            max(high, mean) + 0.02 * right,
            row,
            f"{mean:.3f}",
            va="center",
            fontsize=9,
            color=_INK,
            bbox=_OVER_GRID,
        )
    panel.set_title(measure, loc="left", fontsize=10, color=_INK)
    panel.set_xlim(0, 1.2 * right)
    panel.set_xticks([0, 0.25 * right, 0.5 * right, 0.75 * right, right])
    panel.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=9.5, color=_INK)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.tick_params(axis="both", length=0)
    panel.tick_params(axis="x", labelsize=8, labelcolor=_MUTED)
    panel.grid(axis="x", color="#e3e6ea", linewidth=0.8, zorder=0)
    panel.set_axisbelow(True)
    for side in ("top", "right", "bottom"):
        panel.spines[side].set_visible(False)
    panel.spines["left"].set_color("#b9c0c8")

"""The figure of a report: means with their intervals, one panel a measure."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from diffretriever.figures import BLUE, GREEN, GRID, HEAD_INCHES, INK, MUTED, ORANGE, RED, headed_figure, png

_COLUMNS = 3
_PANEL_INCHES = 2.9
_BAR_INCHES = 0.38
_COLOURS = (BLUE, ORANGE, GREEN, "#8c6bb1", RED, MUTED)
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
    width = 0.45 + 0.085 * max(map(len, labels)) + _PANEL_INCHES * n_columns
    height = HEAD_INCHES + n_rows * (0.6 + _BAR_INCHES * len(labels))
    figure = headed_figure(width, height, title, subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flatten()
    for panel, measure in zip(panels, measures, strict=False):
        rows = [(label, means[label][measure], intervals[label][measure]) for label in labels]
        _draw_panel(panel, measure, rows)
    for panel in panels[len(measures) :]:
        panel.set_visible(False)
    return png(figure)


def _draw_panel(panel: Axes, measure: str, rows: list[tuple[str, float, tuple[float, float]]]) -> None:
    """Draw one measure: the first label on top, its value at the end of the bar."""
    furthest = max(max(high, mean) for _, mean, (_, high) in rows)
    # Measures of 0..1 share one scale, so that panels can be read against each other.
    right = 1.0 if furthest <= 1 else furthest
    for row, (_, mean, (low, high)) in enumerate(rows):
        panel.barh(row, mean, height=0.62, color=_COLOURS[row % len(_COLOURS)], zorder=2)
        panel.plot([low, high], [row, row], color=INK, linewidth=1.3, solid_capstyle="butt", zorder=3)
        panel.text(
            max(high, mean) + 0.02 * right,
            row,
            f"{mean:.3f}",
            va="center",
            fontsize=9,
            color=INK,
            bbox=_OVER_GRID,
        )
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
    panel.spines["left"].set_color("#b9c0c8")

"""What all figures share: size, head, colours, and a PNG whose bytes depend on its content alone."""

from __future__ import annotations

import io
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK, MUTED, GRID = "#22272e", "#6b7785", "#e3e6ea"


BLUE, RED, GREEN, ORANGE, GREY = "#3b6ea5", "#c25b56", "#4f9d69", "#e08e45", "#9aa4af"


HEAD_INCHES = 0.72


def headed_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """Return an empty figure of `width` by `height` inches with two lines at its top; panels go below them."""
    width = max(width, 0.3 + 0.112 * len(title), 0.3 + 0.075 * len(subtitle))
    below = (0.01, 0.01, 0.98, 0.99 - HEAD_INCHES / height)
    figure = Figure(
        figsize=(width, height), dpi=150, layout=ConstrainedLayoutEngine(rect=below, wspace=0.05, hspace=0.06)
    )
    FigureCanvasAgg(figure)
    figure.text(0.12 / width, 1 - 0.12 / height, title, va="top", fontsize=12, fontweight="bold", color=INK)
    figure.text(0.12 / width, 1 - 0.40 / height, subtitle, va="top", fontsize=9, color=MUTED)
    return figure


def quiet(panel: Axes, grid_axis: Literal["x", "y"]) -> None:
    """Give a panel thin grid lines along one axis and no frame but its base."""
    panel.grid(axis=grid_axis, color=GRID, linewidth=0.8, zorder=0)
    panel.set_axisbelow(True)
    panel.tick_params(axis="both", length=0, labelsize=8.5, labelcolor=INK)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color("#b9c0c8")


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG."""
    buffer = io.BytesIO()
    # The version of matplotlib in the file would make equal figures differ.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

"""Effectiveness against storage as slots are pruned."""

from __future__ import annotations

from matplotlib.ticker import FixedLocator, NullLocator

from diffretriever.figures import BLUE, GREEN, GREY, HEAD_INCHES, INK, MUTED, ORANGE, headed_figure, png, quiet
from schemas.prune import PruneReport

_STYLES = {
    "threshold": (BLUE, "o", "-"),
    "same number": (GREEN, "s", "-"),
    "first slots": (GREY, "v", "--"),
    "encoded": (ORANGE, "D", ":"),
}


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
    panel.set_xscale("log", base=2)
    ticks = sorted({point.keep for point in report.points})
    panel.xaxis.set_major_locator(FixedLocator(ticks))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:.0f}")
    megabytes = whole.bytes / whole.average / 1e6
    panel.set_xlabel(f"slots a passage has on average; one is {megabytes:.2f} MB of vectors", fontsize=9.5, color=INK)
    panel.set_ylabel(report.measure, fontsize=9.5, color=INK)
    panel.margins(x=0.06, y=0.14)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    panel.tick_params(labelcolor=MUTED)
    return png(figure)

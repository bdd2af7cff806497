"""Effectiveness against mean K_q: fixed budgets, the default rule, and a learned selector at several λ."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.ticker import FixedLocator, NullLocator

from diffretriever.figures import BLUE, GREY, HEAD_INCHES, INK, MUTED, ORANGE, headed_figure, png, quiet
from schemas.selector import AdaptiveRow, FittedSelectorReport


def draw_curve(report: FittedSelectorReport, fixed: Mapping[int, float], rule: AdaptiveRow | None) -> bytes:
    """Return a PNG of mean measure by mean K_q, all queries together.

    Args:
        report: its `curve` is drawn.
        fixed: K_q → mean measure.
        rule: the default rule on the same queries, if it can be used.
    """
    title = f"What query slots buy, {report.mode} {report.measure}"
    subtitle = (
        f"{report.curve[0].queries:,} queries, $K_p$ = {report.passage_budget}; learned: five-fold cross-validation"
    )
    figure = headed_figure(6.4, HEAD_INCHES + 3.6, title, subtitle)
    panel = figure.subplots()
    quiet(panel, "y")
    panel.plot(list(fixed), list(fixed.values()), color=GREY, marker="s", linewidth=1.4, label="fixed", zorder=2)
    points = sorted({(row.mean_budget, row.mean) for row in report.curve})
    panel.plot(*zip(*points, strict=True), color=BLUE, marker="o", linewidth=1.8, label="learned", zorder=4)
    if rule is not None:
        panel.plot([rule.mean_budget], [rule.mean], color=ORANGE, marker="D", linestyle="none", label="rule", zorder=3)
    for row, offset, side in ((report.curve[0], (0, 9), "center"), (report.curve[-1], (-9, -4), "right")):
        panel.annotate(
            f"λ = {row.cost:g}", (row.mean_budget, row.mean), offset, textcoords="offset points", ha=side,
            fontsize=8.5, color=BLUE, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=3,
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(list(fixed)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel("mean $K_q$", fontsize=9.5, color=INK)
    panel.set_ylabel(report.measure, fontsize=9.5, color=INK)
    panel.margins(x=0.06, y=0.14)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    panel.tick_params(labelcolor=MUTED)
    return png(figure)

"""What per-query oracles gain over the fixed budget, and how much of it is luck (paper Fig. 5, with controls)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from diffretriever.evaluation.figures import BLUE, GREEN, INK, MUTED, RED, panel_figure, png, quiet
from diffretriever.evaluation.formats.tables import (
    Cell,
    Interval,
    format_table,
    markdown_table,
    points,
    share,
    signed,
    with_interval,
)
from diffretriever.evaluation.statistics import bootstrap_average
from diffretriever.schemas.base import Model
from diffretriever.schemas.sweep import SweepMode
from diffretriever.studies.budgets.analysis import AVERAGE, AnalysisData, AnalysisFacts, Section, mean_of_means
from diffretriever.studies.budgets.oracles import SIDES, Oracle, Side

_SIDE_NAMES: dict[Side, str] = {"query": "K_q", "passage": "K_p", "joint": "both"}
_TICKS: dict[Side, str] = {"query": "$K_q$", "passage": "$K_p$", "joint": "joint"}
_COLOURS: dict[Side, str] = {"query": BLUE, "passage": RED, "joint": GREEN}
_COLUMNS = [
    "mode", "queries", "adapts", "fixed", "oracle", "gain", "carries over", "data set", "luck", "luck share",
]  # fmt: skip


class OracleGain(Model):
    """What choosing a budget per query by its result would gain over the fixed budget."""

    collection: str
    mode: SweepMode
    side: Side
    """What is adapted."""
    fixed: float
    """Mean measure of the fixed budget."""
    headroom: float
    """What the oracle gains."""
    headroom_interval: Interval
    dataset: float
    """What the best fixed choice for these queries gains, found on other folds of them."""
    carried: float | None
    """What carries over to other budgets of the other side, `dataset` included; None where there are none."""
    carried_interval: Interval | None
    luck: float | None
    """The control: headroom less carried."""
    luck_interval: Interval | None


class OracleSection(Section):
    """Per-query oracles, and how much of them is luck."""

    oracles: tuple[OracleGain, ...]
    """By mode: each set, then the average of all where there are several."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Average what each query's oracles gain, with intervals."""
        gains = (
            _gain(label, mode, side, [data.oracles[mode, name, side] for name in names])
            for mode in data.modes
            for label, names in data.groups()
            for side in SIDES
        )
        return cls(oracles=tuple(gains))

    def figures(self, data: AnalysisData) -> dict[str, bytes]:
        """Draw the gains of each set, a figure for each mode."""
        return {f"oracles-{mode}.png": self._drawn(mode, data) for mode in data.modes}

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield what oracles and controls are, the gains in words and figures, and a table."""
        yield "## Per-query oracles, and how much of them is luck"
        yield (
            f"An oracle chooses each query's budget by its relevance judgements: K_q at K_p = {facts.fixed.passage}, "
            f"K_p at K_q = {facts.fixed.query}, or both. It is an upper bound and no system. It also gains "
            "where budgets differ by nothing but chance, because it takes a maximum. The control beside it chooses by "
            "the same query's results at the *other* budgets of the other side, and is credited with the one it did "
            "not see; how far to trust them is fitted on other queries, and unless that surely gains, it stays at the "
            "fixed budget. What the control gains **carries over**; the rest of the "
            "oracle's gain is **luck**. `data set` is the part of what carries over that another fixed budget would "
            "gain too. Runs of one query share its vectors, so some luck may still carry over, and evidence from few "
            "budgets is noisy, so some preference may be missed."
        )
        for mode in facts.modes:
            yield _in_words([gain for gain in self.oracles if gain.mode == mode], facts.measure)
            yield f"![{mode}: what oracles gain](oracles-{mode}.png)"
        yield markdown_table([_row(gain) for gain in self.oracles], _COLUMNS)

    def table(self, mode: SweepMode) -> str:
        """Return what the oracles of one mode gain as plain text, for the terminal."""
        return format_table([_row(gain)[1:] for gain in self.oracles if gain.mode == mode], _COLUMNS[1:])

    def _drawn(self, mode: SweepMode, data: AnalysisData) -> bytes:
        title = f"What per-query oracles gain over {data.fixed}, {mode} {data.measure}"
        subtitle = "95% bootstrap intervals of the whole gain (black) and of what carries over (white)"
        groups = data.groups()
        figure, panels = panel_figure(
            len(groups), 5, (2.35, 2.75), title, subtitle, margin_inches=(0.5, 0.3), share_y=True
        )
        for panel, (label, _) in zip(panels, groups, strict=True):
            _draw(panel, [gain for gain in self.oracles if (gain.mode, gain.collection) == (mode, label)])
        keys = [
            Patch(facecolor=MUTED, label="carries over to other budgets"),
            Patch(facecolor="white", edgecolor=MUTED, hatch="////", label="luck (the control)"),
        ]
        figure.legend(handles=keys, loc="outside lower left", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
        return png(figure)


def _gain(label: str, mode: SweepMode, side: Side, found: list[Oracle]) -> OracleGain:
    headrooms = [o.headroom for o in found]
    carried = [o.carried_gain for o in found if o.carried_gain is not None]
    luck = [o.luck for o in found if o.luck is not None]
    return OracleGain(
        collection=label,
        mode=mode,
        side=side,
        fixed=mean_of_means([o.fixed_Q for o in found]),
        headroom=mean_of_means(headrooms),
        headroom_interval=bootstrap_average(headrooms),
        dataset=mean_of_means([o.dataset_Q - o.fixed_Q for o in found]),
        carried=mean_of_means(carried) if carried else None,
        carried_interval=bootstrap_average(carried) if carried else None,
        luck=mean_of_means(luck) if luck else None,
        luck_interval=bootstrap_average(luck) if luck else None,
    )


def _in_words(gains: Sequence[OracleGain], measure: str) -> str:
    last = [gain for gain in gains if gain.collection == gains[-1].collection]
    where = "on average over the sets" if last[0].collection == AVERAGE else f"on {last[0].collection}"
    said = [
        f"{_SIDE_NAMES[gain.side]} {signed(gain.headroom)}"
        + ("" if gain.carried is None else f", of which {signed(gain.carried)} carries over")
        for gain in last
    ]
    fixed = f"Over {points(last[0].fixed)} {measure} of the fixed budget"
    return f"**{last[0].mode}.** {fixed}, {where}, the oracles gain: {'; '.join(said)}."


def _row(gain: OracleGain) -> list[Cell]:
    return [
        gain.mode,
        gain.collection,
        _SIDE_NAMES[gain.side],
        points(gain.fixed),
        points(gain.fixed + gain.headroom),
        with_interval(gain.headroom, gain.headroom_interval),
        with_interval(gain.carried, gain.carried_interval),
        signed(gain.dataset),
        with_interval(gain.luck, gain.luck_interval),
        share(gain.luck / gain.headroom if gain.luck is not None and gain.headroom > 0 else None),
    ]


def _draw(panel: Axes, gains: Sequence[OracleGain]) -> None:
    quiet(panel, "y")
    for place, gain in enumerate(gains):
        colour = _COLOURS[gain.side]
        carried = gain.carried or 0.0
        start = max(carried, 0.0)
        panel.bar(place, carried, 0.64, color=colour, zorder=2)
        panel.bar(
            place, gain.headroom - start, 0.64, bottom=start, facecolor="white", edgecolor=colour, hatch="////",
            zorder=2,
        )  # fmt: skip
        panel.plot([place, place], gain.headroom_interval, color=INK, linewidth=1.4, zorder=4)
        if gain.carried_interval is not None:
            _whisker(panel, place - 0.2, gain.carried_interval)
        panel.annotate(
            signed(gain.headroom), (place, gain.headroom_interval[1]), (0, 4), textcoords="offset points", ha="center",
            fontsize=9, color=INK, fontweight="bold",
        )  # fmt: skip
    panel.axhline(0, color=INK, linewidth=0.9, zorder=5)
    panel.set_title(gains[0].collection, loc="left", fontsize=10, color=INK)
    panel.set_title(f"fixed {points(gains[0].fixed)}", loc="right", fontsize=8.5, color=MUTED)
    panel.set_xticks(range(len(gains)), [_TICKS[gain.side] for gain in gains])
    panel.margins(x=0.08, y=0.14)


def _whisker(panel: Axes, x: float, interval: Interval) -> None:
    panel.plot([x, x], interval, color=INK, linewidth=2.6, solid_capstyle="butt", zorder=4)
    panel.plot([x, x], interval, color="white", linewidth=1.2, solid_capstyle="butt", zorder=5)

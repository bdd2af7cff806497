"""Oracles that choose a budget per query by its own result, and beside each what of the gain is luck (paper §6.3).

An oracle over runs that differ by nothing but noise gains too: it is a maximum. How much of its gain means anything
cannot be told from the maximum itself. Shuffling a query's budget labels leaves the maximum as it is; shuffling them
across queries mixes easy with hard ones and makes an oracle far better than the true one. What tells preference from
luck is a second look at the same query, and a sweep has one: a query that truly wants K_q = 8 wants it whatever the
passages' budget, while luck at one passage budget says nothing about another. So the control chooses a query's K_q by
its results with the *other* K_p, never by the value it is then credited with; likewise for K_p, and for both at once by
the other cells of the same row and column. How far that evidence is trusted is fitted on other queries; where nothing
gains more than a standard error there, the control stays at the fixed budget. What the control gains carries over; what
the oracle gains beyond it does not, and is called luck.

Two things blur the line. The runs of one query share its vectors, so their luck is not independent, and some of it
carries over; and evidence from few budgets is noisy itself, so some preference is missed and counted as luck, the more
so for both at once, where a cell is evidence for the very cells it competes with. A part of what carries over may be no
matter of the query at all but of the data set, where another fixed budget would be better: that part is told apart.

Legend: A query budgets, B passage budgets, C candidates, Q queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from diffretriever.budgets.fit import folds
from diffretriever.evaluation.budgets.data import AVERAGE, AnalysisData
from diffretriever.evaluation.budgets.sweeps import Outcomes
from diffretriever.evaluation.figures import (
    BLUE,
    GREEN,
    HEAD_INCHES,
    INK,
    MUTED,
    ORANGE,
    RED,
    headed_figure,
    png,
    quiet,
)
from diffretriever.evaluation.statistics import bootstrap_average
from diffretriever.evaluation.tables import (
    Cell,
    format_table,
    markdown_table,
    points,
    share,
    signed,
    with_interval,
)
from schemas.analyse import AnalysisReport, OracleGain
from schemas.budget import Budget
from schemas.sweep import SweepMode

Side: TypeAlias = Literal["query", "passage", "joint"]


SIDES: tuple[Side, ...] = ("query", "passage", "joint")


_TRUSTS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Oracle:
    """Values of every query, float64 [Q] each; an oracle's gain is the sum of its three steps.

    Attributes:
        fixed_Q: with the fixed budget.
        dataset_Q: with the candidate whose mean is best on other queries: step one, of the data set.
        carried_Q: with the candidate that other cells' evidence names: step two, of the query. None where the sweep has
            a single budget on the other side and so no evidence.
        best_Q: with the query's own best candidate: step three, luck.
    """

    fixed_Q: np.ndarray
    dataset_Q: np.ndarray
    carried_Q: np.ndarray | None
    best_Q: np.ndarray

    @property
    def headroom(self) -> np.ndarray:
        """What the oracle gains over the fixed budget, float64 [Q]."""
        return self.best_Q - self.fixed_Q

    @property
    def carried_gain(self) -> np.ndarray | None:
        """What carries over: the headroom less its control, float64 [Q]."""
        return None if self.carried_Q is None else self.carried_Q - self.fixed_Q

    @property
    def luck(self) -> np.ndarray | None:
        """The control: what the oracle gains by luck, float64 [Q]."""
        return None if self.carried_Q is None else self.best_Q - self.carried_Q


def oracle(outcomes: Outcomes, fixed: Budget, side: Side) -> Oracle:
    """Return the oracle that adapts `side` per query and its control.

    Args:
        outcomes: of one mode and measure.
        fixed: the budget it is measured against, chosen on other queries than these; `query` keeps its K_p, `passage`
            its K_q, `joint` neither.
        side: what is adapted.

    Raises:
        ValueError: the sweep lacks `fixed`.
    """
    a, b = outcomes.place(fixed)
    values_CQ, evidence_CQ, start = _candidates(outcomes.values_ABQ, a, b, side)
    fixed_Q, everyone = values_CQ[start], np.arange(len(outcomes.queries))
    dataset_Q, carried_Q = fixed_Q.copy(), fixed_Q.copy()
    for training, test in folds(len(everyone)):
        means_C1 = values_CQ[:, training].mean(axis=1, keepdims=True)
        best_Q = np.full(len(everyone), _first_best(means_C1, start)[0])
        own_CQ = np.zeros_like(values_CQ) if evidence_CQ is None else _deviation(evidence_CQ, training)
        moves = [_first_best(means_C1 + trust * own_CQ, start) for trust in _TRUSTS]
        for gained_Q, rules in ((dataset_Q, [best_Q]), (carried_Q, [best_Q, *moves])):
            chosen_Q = _surest(values_CQ, training, start, rules)
            gained_Q[test] = values_CQ[chosen_Q[test], test]
    return Oracle(fixed_Q, dataset_Q, None if evidence_CQ is None else carried_Q, values_CQ.max(axis=0))


def best_query_budgets(outcomes: Outcomes, passage_budget: int) -> np.ndarray:
    """Return each query's K_q with the highest value at `passage_budget`, int64 [Q]; of equals the smallest."""
    _, b = outcomes.place(Budget(outcomes.query_budgets[0], passage_budget))
    # argmax takes the first, and budgets ascend.
    return np.array(outcomes.query_budgets)[outcomes.values_ABQ[:, b].argmax(axis=0)]


def decided(outcomes: Outcomes, passage_budget: int) -> np.ndarray:
    """Return for each query whether its K_q matters at all at `passage_budget`, bool [Q]."""
    _, b = outcomes.place(Budget(outcomes.query_budgets[0], passage_budget))
    return np.ptp(outcomes.values_ABQ[:, b], axis=0) > 0


def _candidates(values_ABQ: np.ndarray, a: int, b: int, side: Side) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Return values and evidence of the candidates, [C, Q] each, and the fixed budget's place among them."""
    n_a, n_b, n_queries = values_ABQ.shape
    across_b = _others_mean(values_ABQ, axis=1)
    across_a = _others_mean(values_ABQ, axis=0)
    if side == "query":
        return values_ABQ[:, b], None if across_b is None else across_b[:, b], a
    if side == "passage":
        return values_ABQ[a], None if across_a is None else across_a[a], b
    flat = (n_a * n_b, n_queries)
    evidence = None if across_a is None or across_b is None else ((across_a + across_b) / 2).reshape(flat)
    return values_ABQ.reshape(flat), evidence, a * n_b + b


def _others_mean(values_ABQ: np.ndarray, axis: int) -> np.ndarray | None:
    """Return for each cell the mean of the other cells along `axis`; None where there is no other."""
    n = values_ABQ.shape[axis]
    return None if n == 1 else (values_ABQ.sum(axis=axis, keepdims=True) - values_ABQ) / (n - 1)


def _deviation(evidence_CQ: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Return what is a query's own in the evidence: less its mean, and less what the training queries share."""
    own_CQ = evidence_CQ - evidence_CQ.mean(axis=0)
    return own_CQ - own_CQ[:, training].mean(axis=1, keepdims=True)


def _surest(values_CQ: np.ndarray, training: np.ndarray, start: int, rules: list[np.ndarray]) -> np.ndarray:
    """Return the rule that gains most on the training queries less a standard error, or else the fixed budget.

    Args:
        values_CQ: float64 [C, Q].
        training: positions of queries.
        start: the fixed budget's place among the candidates.
        rules: int64 [Q] each, a place among the candidates for every query.
    """
    surest, best = np.full(values_CQ.shape[1], start), 0.0
    for places_Q in rules:
        gains = values_CQ[places_Q[training], training] - values_CQ[start, training]
        sure = float(gains.mean() - gains.std() / np.sqrt(len(gains)))
        if sure > best:
            surest, best = places_Q, sure
    return surest


def _first_best(scores_CQ: np.ndarray, start: int) -> np.ndarray:
    """Return the place of each query's highest score; of equals the fixed budget's if it is one, else the first."""
    highest_Q = scores_CQ.max(axis=0)
    # Equal but for rounding is equal: a query without a preference stays where it is.
    stays_Q = scores_CQ[start] >= highest_Q - 1e-12
    return np.where(stays_Q, start, scores_CQ.argmax(axis=0))


def all_oracles(data: AnalysisData) -> dict[tuple[SweepMode, str, Side], Oracle]:
    """Return every oracle against the fixed budget, by mode, set and side."""
    return {
        (mode, name, side): oracle(data.outcomes[name, mode], data.fixed, side)
        for mode in data.modes
        for name in data.names
        for side in SIDES
    }


def oracle_gains(data: AnalysisData, oracles: Mapping[tuple[SweepMode, str, Side], Oracle]) -> Iterator[OracleGain]:
    """Yield what each oracle gains, per set and then as the average of all sets."""
    groups = [(name, [name]) for name in data.names]
    if len(data.names) > 1:
        groups.append((AVERAGE, data.names))
    for mode in data.modes:
        for label, names in groups:
            for side in SIDES:
                yield _gain(label, mode, side, [oracles[mode, name, side] for name in names])


def _gain(label: str, mode: SweepMode, side: Side, found: list[Oracle]) -> OracleGain:
    headrooms = [o.headroom for o in found]
    carried = [o.carried_gain for o in found if o.carried_gain is not None]
    luck = [o.luck for o in found if o.luck is not None]
    return OracleGain(
        collection=label,
        mode=mode,
        side=side,
        fixed=_average([o.fixed_Q for o in found]),
        headroom=_average(headrooms),
        headroom_interval=bootstrap_average(headrooms),
        dataset=_average([o.dataset_Q - o.fixed_Q for o in found]),
        carried=_average(carried) if carried else None,
        carried_interval=bootstrap_average(carried) if carried else None,
        luck=_average(luck) if luck else None,
        luck_interval=bootstrap_average(luck) if luck else None,
    )


def _average(samples: list[np.ndarray]) -> float:
    return float(np.mean([sample.mean() for sample in samples]))


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


_ORACLE_COLUMNS = [
    "mode", "queries", "adapts", "fixed", "oracle", "gain", "carries over", "data set", "luck", "luck share",
]  # fmt: skip


_PAGE_SIDES = {"query": "K_q", "passage": "K_p", "joint": "both"}


def oracle_table(report: AnalysisReport) -> str:
    """Return what the main mode's oracles gain as plain text, for the terminal."""
    rows = [_oracle_row(gain)[1:] for gain in report.oracles if gain.mode == report.modes[0]]
    return format_table(rows, _ORACLE_COLUMNS[1:])


def _oracle_section(report: AnalysisReport) -> Iterator[str]:
    yield "## Per-query oracles, and how much of them is luck"
    yield (
        f"An oracle chooses each query's budget by its relevance judgements: K_q at K_p = {report.fixed.passage}, "
        f"K_p at K_q = {report.fixed.query}, or both. It is an upper bound and no system. It also gains "
        "where budgets differ by nothing but chance, because it takes a maximum. The control beside it chooses by the "
        "same query's results at the *other* budgets of the other side, and is credited with the one it did not see; "
        "how far to trust them is fitted on other queries, and unless that surely gains, it stays at the fixed budget. "
        "What the control gains **carries over**; the rest of the "
        "oracle's gain is **luck**. `data set` is the part of what carries over that another fixed budget would gain "
        "too. Runs of one query share its vectors, so some luck may still carry over, and evidence from few budgets is "
        "noisy, so some preference may be missed."
    )
    for mode in report.modes:
        yield _oracle_summary(report, [g for g in report.oracles if g.mode == mode])
        yield f"![{mode}: what oracles gain](oracles-{mode}.png)"
    rows = [_oracle_row(gain) for gain in report.oracles]
    yield markdown_table(rows, _ORACLE_COLUMNS)


def _oracle_summary(report: AnalysisReport, gains: list[OracleGain]) -> str:
    """Say in words what the last group holds: the average where there is one."""
    last = [gain for gain in gains if gain.collection == gains[-1].collection]
    where = "on average over the sets" if last[0].collection == AVERAGE else f"on {last[0].collection}"
    said = [
        f"{_SIDES[g.side]} {signed(g.headroom)}"
        + ("" if g.carried is None else f", of which {signed(g.carried)} carries over")
        for g in last
    ]
    fixed = f"Over {points(last[0].fixed)} {report.measure} of the fixed budget"
    return f"**{last[0].mode}.** {fixed}, {where}, the oracles gain: {'; '.join(said)}."


def _oracle_row(gain: OracleGain) -> list[Cell]:
    return [
        gain.mode,
        gain.collection,
        _PAGE_SIDES[gain.side],
        points(gain.fixed),
        points(gain.fixed + gain.headroom),
        with_interval(gain.headroom, gain.headroom_interval),
        with_interval(gain.carried, gain.carried_interval),
        signed(gain.dataset),
        with_interval(gain.luck, gain.luck_interval),
        share(gain.luck / gain.headroom if gain.luck is not None and gain.headroom > 0 else None),
    ]

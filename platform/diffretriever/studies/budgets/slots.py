"""How different the slots of a text are, and which passage slot matches each query slot under MaxSim (paper Eq. 2).

Legend: A query slots, B passage slots, K slots of a text, T texts, N vectors of all texts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, Self, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from diffretriever.collections import read_run
from diffretriever.core.files import is_file
from diffretriever.evaluation.figures import BLUE, INK, MUTED, RED, panel_figure, png, quiet
from diffretriever.evaluation.formats.tables import (
    NOTHING,
    Cell,
    Interval,
    level_with_interval,
    markdown_table,
    points,
    share,
)
from diffretriever.evaluation.statistics import bootstrap_interval
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.studies.budgets.analysis import AnalysisData, AnalysisFacts, Section
from diffretriever.studies.budgets.sweep_files import SweptSplit, read_queries
from diffretriever.vectors.representations import read_vectors

_Side: TypeAlias = Literal["query", "passage"]

_TOP_PASSAGES = 10
_MOST_TEXTS = 500
_BATCH_ROWS = 1024
_COLOURS: dict[_Side, str] = {"query": BLUE, "passage": RED}


class SlotSimilarity(Model):
    """How alike the slots of a query, or of a passage, are."""

    collection: str
    """As collection/split."""
    side: _Side
    slots: int
    """K_q or K_p, more than 1."""
    texts: int
    """Texts with more than one slot."""
    cosine: float
    """Mean over texts of the mean cosine over the pairs of a text's slots; 1: all are one vector."""
    interval: Interval
    """Bootstrap 95% interval of it."""


class SlotWins(Model):
    """Which passage slot MaxSim takes for each query slot, over queries with their top-ranked passages."""

    collection: str
    """As collection/split."""
    budget: Budget
    """The fixed budget."""
    queries: int
    passages: int
    """Pairs of a query and a passage."""
    shares: tuple[tuple[float, ...], ...]
    """By query slot, then passage slot: the share of the pairs in which it wins; each row adds up to 1."""
    in_use: float
    """Effective number of passage slots: two to the entropy of their shares over all query slots."""


class SlotSection(Section):
    """Which slots win, and how different they are, over at most 500 evenly spaced texts."""

    similarities: tuple[SlotSimilarity, ...]
    """For every K above 1. Empty where the sweeps no longer have indexes and encoded queries."""
    wins: tuple[SlotWins, ...]
    """At the fixed budget, over the ten top-ranked passages of each query's dense run. Empty where the sweeps no longer
    have indexes and encoded queries, or have no dense runs."""

    @classmethod
    def compute(cls, data: AnalysisData) -> Self:
        """Compare the slots' vectors and count wins, as far as the sweeps still have vectors."""
        splits = data.splits.values()
        return cls(
            similarities=tuple(found for split in splits for found in _similarities(split)),
            wins=tuple(found for split in splits for found in _wins(split, data.fixed)),
        )

    def figures(self, data: AnalysisData) -> dict[str, bytes]:
        """Draw cosines by K in the first panel, then the shares of wins of each set."""
        if not self.similarities:
            return {}
        title = "How different slots are, and which win"
        subtitle = f"cosine between a text's slots, bootstrap 95% intervals; shares of MaxSim wins at {data.fixed}"
        figure, panels = panel_figure(1 + len(self.wins), 4, (3.0, 2.4), title, subtitle, margin_inches=(0.4, 0.15))
        _draw_cosines(panels[0], self.similarities)
        highest = max((max(map(max, wins.shares)) for wins in self.wins), default=1.0)
        for panel, wins in zip(panels[1:], self.wins, strict=True):
            _draw_wins(panel, wins, highest)
        return {"slots.png": png(figure)}

    def page(self, facts: AnalysisFacts) -> Iterator[str]:
        """Yield a table of cosines, the figure, and a table of wins."""
        if not self.similarities:
            return
        yield "## Which slots win, and how different they are"
        yield (
            "Mean cosine over the pairs of a text's slots, and over texts, with bootstrap 95% intervals: at 1 all "
            "slots are one vector, and MaxSim over them is what one slot gives. At most 500 texts a set, evenly spaced."
        )
        yield _cosine_table(self.similarities)
        yield "![Cosine between slots, and shares of wins](slots.png)"
        if not self.wins:
            return
        yield (
            f"Wins: over the ten top-ranked passages of each query's dense run at {facts.fixed} (no judgements "
            "needed), the passage slot that MaxSim takes for each query slot; of equal ones the first. `in use` is two "
            "to the entropy of the passage slots' shares: all of them if all win alike."
        )
        rows = [_wins_row(wins) for wins in self.wins]
        yield markdown_table(rows, ["queries", "n", "pairs", "the slot that wins most", "in use"])


def _similarities(split: SweptSplit) -> Iterator[SlotSimilarity]:
    cosines: dict[tuple[_Side, int], np.ndarray] = {}
    for k in (k for k in split.manifest.query_budgets if k > 1 and split.has_encoded(k)):
        encoded = split.encoded(k)
        queries = encoded.take(_spaced(len(encoded)))
        cosines["query", k] = mean_pairwise_cosines(queries.vectors_MH, queries.offsets)
    for k in (k for k in split.manifest.passage_budgets if k > 1):
        if PassageIndex.exists(str(split.index_folder(k))):
            index = PassageIndex.open(str(split.index_folder(k)))
            cosines["passage", k] = mean_pairwise_cosines(*read_vectors(index.take(_spaced(len(index)), ["reps"])))
    for (side, k), cosines_T in cosines.items():
        several = cosines_T[~np.isnan(cosines_T)]
        if len(several):
            yield SlotSimilarity(
                collection=split.name,
                side=side,
                slots=k,
                texts=len(several),
                cosine=float(several.mean()),
                interval=bootstrap_interval(several),
            )


def _wins(split: SweptSplit, budget: Budget) -> Iterator[SlotWins]:
    place = str(split.index_folder(budget.passage))
    run_file = split.folder / split.split / "runs" / str(budget) / "dense.trec"
    if not (is_file(run_file) and split.has_encoded(budget.query) and PassageIndex.exists(place)):
        return
    run = read_run(run_file)
    ids = list(read_queries(split.folder, split.split))
    asked = _spaced(len(ids))
    ranked = [_top(run.get(ids[number], {})) for number in asked.tolist()]
    encoded = split.encoded(budget.query).take(asked)
    vectors = _vectors_of(PassageIndex.open(place), {passage for top in ranked for passage in top})
    queries = [encoded.vectors_MH[first:end] for first, end in pairwise(encoded.offsets.tolist())]
    counts_AB = _count(queries, ranked, vectors)
    # A query with fewer slots than the others has no winners for the rest.
    shares_AB = counts_AB / np.maximum(counts_AB.sum(axis=1, keepdims=True), 1)
    yield SlotWins(
        collection=split.name,
        budget=budget,
        queries=sum(map(bool, ranked)),
        passages=sum(map(len, ranked)),
        shares=tuple(map(tuple, shares_AB.tolist())),
        in_use=slots_in_use(counts_AB.sum(axis=0) / max(counts_AB.sum(), 1)),
    )


def _count(
    queries: Sequence[np.ndarray], ranked: Sequence[Sequence[str]], vectors: Mapping[str, np.ndarray]
) -> np.ndarray:
    most_a = max(map(len, queries), default=0)
    most_b = max(map(len, vectors.values()), default=0)
    counts_AB = np.zeros((most_a, most_b), dtype=np.int64)
    for query_AH, top in zip(queries, ranked, strict=True):
        for passage in top:
            counts_AB[np.arange(len(query_AH)), winning_slots(query_AH, vectors[passage])] += 1
    return counts_AB


def _top(hits: Mapping[str, float]) -> list[str]:
    return sorted(hits, key=lambda passage: (-hits[passage], passage))[:_TOP_PASSAGES]


def _vectors_of(index: PassageIndex, wanted: set[str]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for batch in index.batches(["id", "reps"], _BATCH_ROWS):
        vectors_NH, offsets = read_vectors(batch)
        for passage, (first, end) in zip(batch.column("id").to_pylist(), pairwise(offsets.tolist()), strict=True):
            if passage in wanted:
                found[passage] = vectors_NH[first:end].copy()
    if len(found) < len(wanted):
        lost = min(wanted - found.keys())
        raise ValueError(f"{index.uri} lacks the passage '{lost}' of its own run: run jobs/sweep_budgets.py again")
    return found


def _spaced(n: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, _MOST_TEXTS)).astype(np.int64))


def _cosine_table(similarities: Sequence[SlotSimilarity]) -> str:
    columns = list(dict.fromkeys((found.collection, found.side) for found in similarities))
    values = {
        (found.collection, found.side, found.slots): level_with_interval(found.cosine, found.interval)
        for found in similarities
    }
    rows: list[list[Cell]] = [
        [str(slots), *(values.get((collection, side, slots), NOTHING) for collection, side in columns)]
        for slots in sorted({found.slots for found in similarities})
    ]
    return markdown_table(rows, ["K", *(f"{collection} {side}" for collection, side in columns)])


def _wins_row(wins: SlotWins) -> list[Cell]:
    shares_B = [sum(column) / len(wins.shares) for column in zip(*wins.shares, strict=True)]
    strongest = shares_B.index(max(shares_B))
    return [
        wins.collection,
        wins.queries,
        wins.passages,
        f"slot {strongest + 1}: {share(shares_B[strongest])}",
        f"{wins.in_use:.1f} of {len(shares_B)}",
    ]


def _draw_cosines(panel: Axes, found: Sequence[SlotSimilarity]) -> None:
    quiet(panel, "y")
    named: set[str] = set()
    for collection, side in dict.fromkeys((f.collection, f.side) for f in found):
        own = [f for f in found if (f.collection, f.side) == (collection, side)]
        label = None if side in named else f"{side} slots"
        named.add(side)
        panel.plot(
            [f.slots for f in own], [f.cosine for f in own], color=_COLOURS[side], linewidth=1.5, marker="o",
            markersize=4, alpha=0.85, label=label,
        )  # fmt: skip
        for f in own:
            panel.plot([f.slots, f.slots], f.interval, color=_COLOURS[side], linewidth=1.2, alpha=0.7)
    panel.set_xscale("log", base=2)
    ticks = sorted({f.slots for f in found})
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel("K", fontsize=9, color=INK)
    panel.set_title("mean cosine between slots", loc="left", fontsize=10, color=INK)
    panel.set_ylim(min(0.0, *(f.cosine for f in found)) - 0.02, 1.02)
    panel.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="best")


def _draw_wins(panel: Axes, wins: SlotWins, highest: float) -> None:
    shares = np.array(wins.shares)
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=highest, aspect="auto")
    if shares.shape[1] <= 8:
        for (row, column), value in np.ndenumerate(shares):
            colour = "white" if value > 0.6 * highest else MUTED
            panel.text(column, row, points(float(value)), ha="center", va="center", fontsize=7.5, color=colour)
    panel.set_title(wins.collection, loc="left", fontsize=10, color=INK)
    panel.set_xlabel("passage slot", fontsize=9, color=INK)
    panel.set_ylabel("query slot", fontsize=9, color=INK)
    for axis, n in ((panel.xaxis, shares.shape[1]), (panel.yaxis, shares.shape[0])):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True) if n > 8 else FixedLocator(range(n)))
        axis.set_major_formatter(lambda place, _: f"{place + 1:.0f}")
    panel.tick_params(length=0, labelsize=8, labelcolor=INK)
    for spine in panel.spines.values():
        spine.set_visible(False)


def mean_pairwise_cosines(vectors_NH: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the mean cosine over the pairs of each text's slots, float64 [T]; NaN for fewer than two slots."""
    cosines_T = np.full(len(offsets) - 1, np.nan)
    for text, (first, end) in enumerate(pairwise(offsets.tolist())):
        count = end - first
        if count < 2:
            continue
        own_KH = vectors_NH[first:end].astype(np.float64)
        own_KH /= np.linalg.norm(own_KH, axis=1, keepdims=True)
        # The square of a sum holds every pair twice, and every vector once with itself.
        total_H = own_KH.sum(axis=0)
        cosines_T[text] = (total_H @ total_H - count) / (count * (count - 1))
    return cosines_T


def winning_slots(query_AH: np.ndarray, passage_BH: np.ndarray) -> np.ndarray:
    """Return for each query slot the passage slot that MaxSim takes, int64 [A]; of equal ones the first."""
    places_A: np.ndarray = (query_AH.astype(np.float64) @ passage_BH.astype(np.float64).T).argmax(axis=1)
    return places_A


def slots_in_use(shares_B: np.ndarray) -> float:
    """Return two to the entropy of the shares of wins: B where all slots win alike, 1 where one wins always."""
    won = shares_B[shares_B > 0]
    return float(2.0 ** -(won * np.log2(won)).sum())

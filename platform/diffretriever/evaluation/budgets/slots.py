"""How different the slots of a text are, and which passage slot answers each query slot under MaxSim (paper Eq. 2).

Legend: A query slots, B passage slots, T texts, N vectors of all texts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from diffretriever.collections import read_run
from diffretriever.encoders.representations import read_vectors
from diffretriever.evaluation.budgets.data import AnalysisData
from diffretriever.evaluation.budgets.sweeps import SweptSplit, read_queries
from diffretriever.evaluation.figures import BLUE, HEAD_INCHES, INK, MUTED, RED, headed_figure, png, quiet
from diffretriever.evaluation.statistics import bootstrap_interval
from diffretriever.evaluation.tables import NOTHING, Cell, level_with_interval, markdown_table, points, share
from diffretriever.index.table import PassageIndex
from schemas.analyse import AnalysisReport, SlotSimilarity, SlotWins


def mean_pairwise_cosines(vectors_NH: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the mean cosine over the pairs of each text's slots, float64 [T]; NaN for a text of fewer than two.

    1 says that all slots of a text are one vector, and more slots buy nothing.

    Args:
        vectors_NH: floating [N, H], none of them zero.
        offsets: int64 [T + 1]; text i owns rows offsets[i] to offsets[i + 1].
    """
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
    """Return for each query slot the passage slot that MaxSim takes, int64 [A]; of equal ones the first.

    Args:
        query_AH: floating [A, H].
        passage_BH: floating [B, H], at least one slot.
    """
    places_A: np.ndarray = (query_AH.astype(np.float64) @ passage_BH.astype(np.float64).T).argmax(axis=1)
    return places_A


def slots_in_use(shares_B: np.ndarray) -> float:
    """Return two to the entropy of the shares of wins: B where all slots win alike, 1 where one wins always.

    Args:
        shares_B: float64 [B], of sum 1.
    """
    won = shares_B[shares_B > 0]
    return float(2.0 ** -(won * np.log2(won)).sum())


TOP_PASSAGES = 10


MOST_TEXTS = 500


_BATCH_ROWS = 1024


def similarities(data: AnalysisData) -> Iterator[SlotSimilarity]:
    """Yield how alike the slots of queries and passages are, for every K above 1 whose vectors the sweeps still have.

    Of more than 500 texts, 500 are looked at, evenly spaced.
    """
    for split in data.splits.values():
        for k in (k for k in split.manifest.query_budgets if k > 1 and split.has_encoded(k)):
            encoded = split.encoded(k)
            queries = encoded.take(_spaced(len(encoded)))
            yield from _similarity(split, "query", k, mean_pairwise_cosines(queries.vectors_MH, queries.offsets))
        for k in (k for k in split.manifest.passage_budgets if k > 1):
            place = str(split.index_folder(k))
            if not PassageIndex.exists(place):
                continue
            index = PassageIndex.open(place)
            cosines = mean_pairwise_cosines(*read_vectors(index.take(_spaced(len(index)), ["reps"])))
            yield from _similarity(split, "passage", k, cosines)


def wins(data: AnalysisData) -> Iterator[SlotWins]:
    """Yield which slots win at the fixed budget, over the ten top-ranked passages of each query's dense run.

    Of more than 500 queries, 500 are looked at, evenly spaced.
    """
    for split in data.splits.values():
        place = str(split.index_folder(data.fixed.passage))
        run_file = split.folder / split.split / "runs" / str(data.fixed) / "dense.trec"
        if not (run_file.is_file() and split.has_encoded(data.fixed.query) and PassageIndex.exists(place)):
            continue
        run = read_run(run_file)
        ids = list(read_queries(split.folder, split.split))
        asked = _spaced(len(ids))
        ranked = [_top(run.get(ids[number], {})) for number in asked.tolist()]
        encoded = split.encoded(data.fixed.query).take(asked)
        vectors = _vectors_of(PassageIndex.open(place), {passage for top in ranked for passage in top})
        queries = [encoded.vectors_MH[first:end] for first, end in pairwise(encoded.offsets.tolist())]
        yield _wins(data, split, _count(queries, ranked, vectors))


def _similarity(
    split: SweptSplit, side: Literal["query", "passage"], slots: int, cosines_T: np.ndarray
) -> Iterator[SlotSimilarity]:
    """Yield one value, or none where no text has two slots."""
    several = cosines_T[~np.isnan(cosines_T)]
    if not len(several):
        return
    yield SlotSimilarity(
        collection=split.name,
        side=side,
        slots=slots,
        texts=len(several),
        cosine=float(several.mean()),
        interval=bootstrap_interval(several),
    )


def _wins(data: AnalysisData, split: SweptSplit, counted: tuple[np.ndarray, int, int]) -> SlotWins:
    counts_AB, queries, passages = counted
    # A query with fewer slots than the others has no winners for the rest.
    shares_AB = counts_AB / np.maximum(counts_AB.sum(axis=1, keepdims=True), 1)
    return SlotWins(
        collection=split.name,
        budget=data.fixed,
        queries=queries,
        passages=passages,
        shares=tuple(map(tuple, shares_AB.tolist())),
        in_use=slots_in_use(counts_AB.sum(axis=0) / max(counts_AB.sum(), 1)),
    )


def _count(
    queries: Sequence[np.ndarray], ranked: Sequence[Sequence[str]], vectors: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, int, int]:
    """Return wins by query slot and passage slot, int64 [A, B], and the numbers of queries and of pairs counted."""
    most_a = max(map(len, queries), default=0)
    most_b = max(map(len, vectors.values()), default=0)
    counts_AB = np.zeros((most_a, most_b), dtype=np.int64)
    pairs = 0
    for query_AH, top in zip(queries, ranked, strict=True):
        for passage in top:
            counts_AB[np.arange(len(query_AH)), winning_slots(query_AH, vectors[passage])] += 1
            pairs += 1
    return counts_AB, sum(map(bool, ranked)), pairs


def _top(hits: Mapping[str, float]) -> list[str]:
    return sorted(hits, key=lambda passage: (-hits[passage], passage))[:TOP_PASSAGES]


def _vectors_of(index: PassageIndex, wanted: set[str]) -> dict[str, np.ndarray]:
    """Return the vectors of passages, in one pass over the index.

    Raises:
        ValueError: the index lacks one.
    """
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
    """Return at most 500 places among n, evenly spaced, int64 ascending."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_TEXTS)).astype(np.int64))


_COLUMNS = 4


_PANEL_WIDTH, _PANEL_HEIGHT = 3.0, 2.4


_COLOURS = {"query": BLUE, "passage": RED}


def draw_slots(report: AnalysisReport) -> bytes:
    """Return a PNG: cosines by K in the first panel, then the shares of wins of each set."""
    n_panels = 1 + len(report.wins)
    n_columns = min(_COLUMNS, n_panels)
    n_rows = -(-n_panels // n_columns)
    subtitle = f"cosine between a text's slots, bootstrap 95% intervals; shares of MaxSim wins at {report.fixed}"
    height = HEAD_INCHES + 0.15 + n_rows * _PANEL_HEIGHT
    figure = headed_figure(0.4 + n_columns * _PANEL_WIDTH, height, "How different slots are, and which win", subtitle)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    _draw_cosines(panels[0], report.similarities)
    highest = max((max(map(max, wins.shares)) for wins in report.wins), default=1.0)
    for panel, wins in zip(panels[1:], report.wins, strict=False):
        _draw_wins(panel, wins, highest)
    for panel in panels[n_panels:]:
        panel.set_visible(False)
    return png(figure)


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
    panel.xaxis.set_major_locator(FixedLocator(sorted({f.slots for f in found})))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:.0f}")
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


def slots_section(report: AnalysisReport) -> Iterator[str]:
    """Yield the parts of the section; nothing where the sweeps no longer have their vectors."""
    if not report.similarities:
        return
    yield "## Which slots win, and how different they are"
    yield (
        "Mean cosine over the pairs of a text's slots, and over texts, with bootstrap 95% intervals: at 1 all slots "
        "are one vector, and MaxSim over them is what one slot gives. At most 500 texts a set, evenly spaced."
    )
    yield markdown_table([_row(report, k) for k in _slot_counts(report)], ["K", *_columns(report)])
    yield "![Cosine between slots, and shares of wins](slots.png)"
    if report.wins:
        yield (
            f"Wins: over the ten top-ranked passages of each query's dense run at {report.fixed} (no judgements "
            "needed), the passage slot that MaxSim takes for each query slot; of equal ones the first. `in use` is two "
            "to the entropy of the passage slots' shares: all of them if all win alike."
        )
        rows: list[list[Cell]] = [
            [wins.collection, wins.queries, wins.passages, _strongest(wins), f"{wins.in_use:.1f} of {_width(wins)}"]
            for wins in report.wins
        ]
        yield markdown_table(rows, ["queries", "n", "pairs", "the slot that wins most", "in use"])


def _columns(report: AnalysisReport) -> list[str]:
    return list(dict.fromkeys(f"{found.collection} {found.side}" for found in report.similarities))


def _slot_counts(report: AnalysisReport) -> list[int]:
    return sorted({found.slots for found in report.similarities})


def _row(report: AnalysisReport, slots: int) -> list[Cell]:
    found = {f"{f.collection} {f.side}": f for f in report.similarities if f.slots == slots}
    return [str(slots), *(_cosine(found.get(column)) for column in _columns(report))]


def _cosine(found: SlotSimilarity | None) -> str:
    return NOTHING if found is None else level_with_interval(found.cosine, found.interval)


def _strongest(wins: SlotWins) -> str:
    totals = [sum(column) / len(wins.shares) for column in zip(*wins.shares, strict=True)]
    place = totals.index(max(totals))
    return f"slot {place + 1}: {share(totals[place])}"


def _width(wins: SlotWins) -> int:
    return len(wins.shares[0])

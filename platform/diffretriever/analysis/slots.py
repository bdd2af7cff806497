"""What a sweep's stored vectors say of slots, read from its indexes and encoded queries; nothing is encoded.

Legend: A query slots, B passage slots, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from diffretriever.analysis.data import AnalysisData
from diffretriever.budgets.queries import read_queries
from diffretriever.budgets.slots import mean_pairwise_cosines, slots_in_use, winning_slots
from diffretriever.budgets.splits import SweptSplit
from diffretriever.collections import read_run
from diffretriever.encoders.representations import read_vectors
from diffretriever.index.table import PassageIndex
from diffretriever.statistics.intervals import bootstrap_interval
from schemas.slots import SlotSimilarity, SlotWins

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

"""How many candidates a recall takes, measured on the index's own passages.

The queries are the beginnings of sampled passages (their titles, where they have any), encoded as queries. Real
questions can be harder: what is kept is the recall on this sample and no promise for others.

Legend: S sampled queries, W exact passages of queries, C candidates of one query.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.hits import Hits
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.proposer import Proposer

_QUERY_WORDS = 12
_ONE_SIDED_95 = 1.645
"""Standard deviations below the mean at which a one-sided 95 % interval ends."""
_TIMED = 20
"""Queries whose median time counts."""
_ENOUGH_SECONDS = 10.0
"""After which no more are timed: a scan of a large table takes minutes for each."""


def sample_queries(index: PassageIndex, encoder: Encoder, size: int, seed: int = 0) -> Representations:
    """Return up to `size` queries made from passages drawn at random.

    Args:
        index: whose passages are drawn.
        encoder: of the queries.
        size: how many, if there are so many.
        seed: of the drawing.
    """
    rows = np.random.default_rng(seed).choice(len(index), min(size, len(index)), replace=False)
    table = index.take(np.sort(rows), ["title", "text"])
    pairs = zip(table.column("title").to_pylist(), table.column("text").to_pylist(), strict=True)
    return encoder.encode_queries([" ".join((title or text).split()[:_QUERY_WORDS]) for title, text in pairs])


def counts_to_try(k: int, passages: int) -> list[int]:
    """Return numbers of candidates, ascending, the last of them all passages."""
    # Codes of a quarter of the passages, here and there, take as long to read as all of them in a row.
    tried = np.geomspace(k, max(k, passages // 4), 60).astype(int)
    return np.unique([*tried.clip(1, passages), passages]).tolist()


def choose_count(
    proposer: Proposer, queries: Representations, exact: Hits, counts: Sequence[int], target: float
) -> tuple[int, float]:
    """Return the smallest number of candidates whose recall surely reaches the target, and its recall on the sample.

    Surely: the lower end of a one-sided 95 % interval of the mean. Few candidates need not be the first of more, since
    some proposers look the further the more they are asked for: every number is tried by itself.

    Args:
        proposer: what names candidates.
        queries: S queries.
        exact: their exact passages.
        counts: numbers of candidates, ascending, the last of them all passages.
        target: mean recall wanted.
    """
    wanted = wanted_numbers(proposer, exact)
    low, high, measured = 0, len(counts) - 1, 1.0
    while low < high:
        middle = (low + high) // 2
        shares_S = recall_at(proposer, queries, wanted, counts[middle])
        if shares_S.mean() - _ONE_SIDED_95 * shares_S.std() / np.sqrt(len(shares_S)) >= target:
            high, measured = middle, float(shares_S.mean())
        else:
            low = middle + 1
    return counts[low], measured


def wanted_numbers(proposer: Proposer, exact: Hits) -> list[np.ndarray]:
    """Return each query's passages as numbers into the proposer's, negative for those that it does not know."""
    return np.split(proposer.passages.places_of(exact.numbers_F), exact.offsets[1:-1])


def recall_at(
    proposer: Proposer, queries: Representations, wanted: Sequence[np.ndarray], n_candidates: int
) -> np.ndarray:
    """Return float [S]: the share of each query's wanted passages that so many candidates hold.

    Passages that the proposer does not know count as held, since they are scanned whole.

    Args:
        proposer: what names candidates.
        queries: S queries.
        wanted: for each, int64 [W] numbers, as `wanted_numbers` returns them.
        n_candidates: for each query.
    """
    proposals = proposer.propose(queries, n_candidates)
    held = [np.isin(own_W, own_C) | (own_W < 0) for own_W, own_C in zip(wanted, proposals, strict=True)]
    return np.array([own_W.sum() / max(1, len(own_W)) for own_W in held])


def milliseconds(search: DenseSearch, queries: Representations, k: int) -> float:
    """Return the median time of a query alone, over the first few."""
    times: list[float] = []
    for query in range(min(len(queries), _TIMED)):
        if sum(times) > _ENOUGH_SECONDS * 1e3:
            break
        start = time.perf_counter()
        search.search(queries.take(np.array([query])), k)
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))

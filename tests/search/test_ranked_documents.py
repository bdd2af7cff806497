"""Documents ranked by their chunks: as if all chunks were scored, although a search ends early."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from diffretriever.schemas.documents import chunks_averaged
from diffretriever.schemas.mode import Mode
from diffretriever.search.documents import Round, documents_of, search_documents
from diffretriever.vectors.hits import Hit, Hits, Passages, ranked_hits

QUERIES = 9


def brute_force(hits: list[Hit], counts: dict[str, int], averaged: int, k: int) -> list[Hit]:
    """Score every document by all chunks that were found; others count 0."""
    chunks = defaultdict[str, list[float]](list)
    for name, score in hits:
        chunks[name.partition("#")[0]].append(score)
    means = {
        name: sum(sorted(scores)[-averaged:][::-1]) / min(averaged, counts[name]) for name, scores in chunks.items()
    }
    return sorted(means.items(), key=lambda item: (-item[1], item[0]))[:k]


class Order:
    """Passages of an index, by number."""

    def __init__(self, ids: list[str]) -> None:
        self.passages = Passages(pa.array(sorted(ids), pa.large_string()), np.arange(len(ids)))


@pytest.mark.parametrize("score", ["max", "mean-1", "mean-2", "mean-3", "mean-20"])
@pytest.mark.parametrize("kind", ["dense", "ties", "sparse", "negative"])
@pytest.mark.parametrize("k", [1, 5, 200])
def test_documents_are_ranked_as_by_all_chunks(score: str, kind: str, k: int) -> None:
    random = np.random.default_rng(k)
    counts = {f"d{n}{'!' * (n % 2)}": int(random.integers(1, 12)) for n in range(60)}
    order = Order([name if size == 1 else f"{name}#{n + 1}" for name, size in counts.items() for n in range(size)])
    size = (QUERIES, len(order.passages))
    scores = {
        "dense": random.random(size),
        "ties": random.integers(0, 4, size) / 10,
        "sparse": np.where(random.random(size) < 0.8, -np.inf, random.integers(1, 9, size)),
        "negative": random.random(size) - 1,
    }[kind]
    queries, numbers = (axis.ravel() for axis in np.indices(size))
    everything = ranked_hits(order.passages, QUERIES, (queries, numbers.astype(np.int32), scores.ravel()))
    rounds = list[Round]()

    def search(each: Round) -> dict[Mode, Hits]:
        rounds.append(each)
        return {"dense": everything[each.start : each.stop].first(each.depth)}

    ranked = list(search_documents(search, QUERIES, documents_of(order), score, k)["dense"])  # type: ignore[arg-type]
    averaged = chunks_averaged(score)
    assert ranked == [brute_force(hits, counts, averaged, k) for hits in everything]
    assert max(each.depth for each in rounds) <= max(2 * k, len(order.passages) + 1)
    if (score, kind, k) == ("max", "dense", 1):
        assert len(rounds) == 1, "a search that is certain ends"


@pytest.mark.parametrize("score", ["min", "mean", "mean-0", "mean-1.5", ""])
def test_unknown_scores_of_documents_are_refused(score: str) -> None:
    with pytest.raises(ValueError, match="use max, first, or mean-3"):
        chunks_averaged(score)

"""BM25: Lucene's formula by hand, analysis, persistence, deletes."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from diffretriever.index.table import PassageIndex
from diffretriever.search import open_searcher
from diffretriever.search.bm25 import analyse
from tests.search.conftest import PASSAGES, QUERIES


def by_hand(query: str) -> dict[str, float]:
    """BM25 as Lucene counts it: idf = log(1 + (N - n + .5) / (n + .5)), tf = f / (f + k1 (1 - b + b |d| / avg))."""
    documents = {p.id: Counter(analyse([f"{p.title} {p.text}"])[0]) for p in PASSAGES}
    average = sum(d.total() for d in documents.values()) / len(documents)
    scores: dict[str, float] = {}
    for term in analyse([query])[0]:
        n = sum(term in d for d in documents.values())
        idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        for passage_id, d in documents.items():
            if d[term]:
                weight = idf * d[term] / (d[term] + 0.9 * (1 - 0.4 + 0.4 * d.total() / average))
                scores[passage_id] = scores.get(passage_id, 0) + weight
    return scores


@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_lucenes(query: str, bm25_index: PassageIndex) -> None:
    (hits,) = open_searcher(bm25_index.uri).search([query], top_k=20)["sparse"]
    expected = sorted(by_hand(query).items(), key=lambda pair: (-pair[1], pair[0]))[:20]
    assert [s for _, s in hits] == pytest.approx([s for _, s in expected], rel=1e-5)


def test_analysis() -> None:
    assert analyse(["The dog's running; running THE dogs!", "", "the"]) == [["dog", "run", "run", "dog"], [], []]


def test_the_model_is_kept_and_follows_the_table(bm25_index: PassageIndex) -> None:
    first = open_searcher(bm25_index.uri).search(QUERIES)
    assert open_searcher(bm25_index.uri).search(QUERIES) == first
    best = first["sparse"][0][0][0]
    bm25_index.delete([best])
    assert best not in dict(open_searcher(bm25_index.uri).search(QUERIES)["sparse"][0])


def test_unknown_words_find_nothing(bm25_index: PassageIndex) -> None:
    assert open_searcher(bm25_index.uri).search(["zzz", ""])["sparse"] == [[], []]


def test_there_is_no_query_budget(bm25_index: PassageIndex) -> None:
    with pytest.raises(ValueError, match="no query budget"):
        open_searcher(bm25_index.uri).search(["x"], budgets=[2])
    with pytest.raises(ValueError, match="no dense scores"):
        open_searcher(bm25_index.uri).search(["x"], modes=["dense"])

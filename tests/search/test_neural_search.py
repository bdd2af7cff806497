"""Searches of a neural index by mode, budget and options."""

from __future__ import annotations

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.search import open_searcher
from diffretriever.search.searcher import Searcher
from diffretriever.vectors.fusion import ranked
from tests.search.conftest import QUERIES


def searcher(index: PassageIndex, encoder: Encoder, **options: object) -> Searcher:
    return Searcher(index, SearchOptions.model_validate({"index": index.uri, **options}), encoder)


def test_options_of_the_authors_score_change_scores(index: PassageIndex, encoder: Encoder) -> None:
    default = searcher(index, encoder).search(QUERIES, modes=["dense"])["dense"][0]
    summed = searcher(index, encoder, maxsim="sum-floored").search(QUERIES, modes=["dense"])["dense"][0]
    rough = searcher(index, encoder, score_dtype="bfloat16-legacy").search(QUERIES, modes=["dense"])["dense"][0]
    assert dict(summed)[default[0][0]] == pytest.approx(4 * default[0][1], abs=1e-5)
    assert len({s for _, s in rough}) < len({s for _, s in default})


def test_an_encoder_with_other_weights_is_rejected(index: PassageIndex) -> None:
    with pytest.raises(ValueError, match=r"made by another retriever(.|\n)*weights: "):
        open_searcher(index.uri, SearchOptions(index=index.uri, backbone="minilm"))


def test_a_neural_index_offers_bm25(
    index: PassageIndex, encoder: Encoder, bm25_index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searcher(index, encoder).search(QUERIES, k=20, modes=["bm25", "dense+bm25", "dense"])
    by_texts = open_searcher(bm25_index.uri)
    assert found["bm25"] == by_texts.search(QUERIES, k=20, modes=["bm25"])["bm25"]
    assert found["bm25"] == by_texts.search(QUERIES, k=20)["sparse"], "a BM25 index has them by either name"
    deep = searcher(index, encoder).search(QUERIES, k=1000, modes=["dense", "bm25"])
    assert found["dense+bm25"] == ranked("dense+bm25", {"dense": deep["dense"], "bm25": deep["bm25"]}, 20)
    assert found["dense"] == deep["dense"].first(20)
    monkeypatch.setattr(type(encoder), "encode_queries", lambda *_: pytest.fail("queries were encoded"))
    assert searcher(index, encoder).search(QUERIES, k=20, modes=["bm25"])["bm25"] == found["bm25"]


def test_unknown_modes_and_missing_budgets_are_rejected(index: PassageIndex, encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="unknown scoring mode 'fuzzy'"):
        searcher(index, encoder).search(["x"], modes=["fuzzy"])
    with pytest.raises(ValueError, match="2 queries but 1 budgets"):
        searcher(index, encoder).search(["x", "y"], budgets=[1])
    assert searcher(index, encoder).search([]) == {"dense": [], "sparse": [], "hybrid": []}


def test_a_query_that_is_not_unicode_is_named(index: PassageIndex, encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="query number 1 holds a lone surrogate at character 3"):
        searcher(index, encoder).search(["heat", "bad\ud800"])

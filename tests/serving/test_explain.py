"""Explanations against loops over slots and terms, and against the scores of a search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.schemas.serve import SearchResponse
from diffretriever.search import open_searcher
from diffretriever.search.explain import explain_each
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import PARTS
from tests.serving.serving_cases import QUERIES, local_service, random_encoder, small_index


def made_up(seed: int, slots: int, ids: list[int]) -> Representations:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(slots, 8)).astype(np.float16)
    weights = random.uniform(0.1, 3, len(ids)).astype(np.float32)
    words = random.choice([*ids, -1], slots).astype(np.int32)
    return Representations(
        vectors,
        np.array([0, slots]),
        words,
        np.array(sorted(ids), np.int32),
        weights,
        np.array([0, len(ids)]),
        np.array([5], np.int32),
    )


ID_SETS = st.lists(st.integers(0, 12), unique=True, max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 5), st.integers(0, 5), ID_SETS, ID_SETS)
def test_explanations_equal_those_of_a_loop(
    seed: int, k_q: int, k_p: int, query_ids: list[int], passage_ids: list[int]
) -> None:
    query, passage = made_up(seed, k_q, query_ids), made_up(seed + 1, k_p, passage_ids)
    (explanation,) = explain_each(query, passage, str)

    assert len(explanation.slots) == (k_q if k_p else 0)
    total = 0.0
    for match in explanation.slots:
        vector = [float(x) for x in query.vectors_MH[match.slot]]
        products = [sum(a * float(b) for a, b in zip(vector, row, strict=True)) for row in passage.vectors_MH]
        assert match.product == pytest.approx(max(products), rel=1e-12)
        assert products[match.passage_slot] == pytest.approx(max(products), rel=1e-12)
        assert match.passage_words == explanation.passage_slots[match.passage_slot]
        total += match.product
    for match in explanation.slots:
        assert match.share == pytest.approx(match.product / total)

    in_query = dict(zip(query.impact_ids.tolist(), query.impact_weights.tolist(), strict=True))
    in_passage = dict(zip(passage.impact_ids.tolist(), passage.impact_weights.tolist(), strict=True))
    expected = {str(i): in_query[i] * in_passage[i] for i in in_query.keys() & in_passage.keys()}
    assert {term.word: term.product for term in explanation.terms} == pytest.approx(expected)
    assert [term.product for term in explanation.terms] == sorted(expected.values(), reverse=True)
    assert not expected or sum(term.share for term in explanation.terms) == pytest.approx(1)


def test_explanations_have_the_parts_of_texts(tmp_path: Path) -> None:
    encoder = random_encoder(tmp_path / "llada", **PARTS)
    index = small_index(encoder, str(tmp_path / "index"))
    searcher = open_searcher(index.uri)
    hits = searcher.search(QUERIES[3:], k=3, modes=["dense"], budgets=[3])["dense"]
    explained = searcher.explain(QUERIES[3], hits.rows(), budget=3)
    for explanation, passage in zip(explained, index.shown(hits.rows()), strict=True):
        assert explanation.query_parts == encoder.preparer.parts(QUERIES[3], "query", 3)
        joined = f"{passage['title']} {passage['text']}"
        assert explanation.passage_parts == encoder.preparer.parts(joined, "passage", len(explanation.passage_slots))
        assert "".join(explanation.passage_parts).replace(" ", "") in joined.replace(" ", "")
    with TestClient(make_api(local_service(index.uri), Keys.of(None), None)) as client:
        body = {"query": QUERIES[3], "k": 3, "mode": "dense", "budget": 3, "explain": True}
        answer = SearchResponse.model_validate(client.post("/search", json=body).raise_for_status().json())
    assert [hit.explanation for hit in answer.results[0].hits] == explained

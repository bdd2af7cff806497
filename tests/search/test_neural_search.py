"""Exact search against a double loop over the stored values, for every mode, budget and memory setting."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import check_same
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever
from diffretriever.representations import Representations
from diffretriever.schemas.search import SearchOptions
from diffretriever.scoring.fusion import ranked
from diffretriever.search import open_searcher
from diffretriever.search.neural import NeuralSearcher
from tests.search.conftest import QUERIES, fill


def searcher(index: PassageIndex, encoder: Encoder, **options: object) -> NeuralSearcher:
    return NeuralSearcher(index, encoder, SearchOptions.model_validate({"index": index.uri, **options}))


def stored(index: PassageIndex) -> tuple[list[str], Representations]:
    table = index.dataset.to_table()
    return table["id"].to_pylist(), Representations.from_arrow(table)


def vectors(reps: Representations, row: int) -> np.ndarray:
    return reps.vectors_MH[reps.offsets[row] : reps.offsets[row + 1]].astype(np.float64)


def impacts(reps: Representations, row: int) -> dict[int, float]:
    span = slice(reps.impact_offsets[row], reps.impact_offsets[row + 1])
    return dict(zip(reps.impact_ids[span].tolist(), reps.impact_weights[span].tolist(), strict=True))


def by_hand(index: PassageIndex, queries: Representations, mode: str) -> list[dict[str, float]]:
    ids, reps = stored(index)
    found = []
    for q in range(len(queries)):
        if mode == "dense":
            scores = {i: float((vectors(queries, q) @ vectors(reps, p).T).max(1).mean()) for p, i in enumerate(ids)}
        else:
            asked = impacts(queries, q)
            scores = {i: sum(asked.get(t, 0) * w for t, w in impacts(reps, p).items()) for p, i in enumerate(ids)}
            scores = {i: s for i, s in scores.items() if s > 0}
        found.append(scores)
    return found


@pytest.mark.parametrize("memory_mb", [1, 1024])
@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_equals_a_double_loop(
    mode: Literal["dense", "sparse"], memory_mb: int, index: PassageIndex, encoder: Encoder
) -> None:
    budgets = [1, 4, 2, 7]
    queries = encoder.encode_queries(QUERIES, budgets)
    found = searcher(index, encoder, memory_mb=memory_mb).search(QUERIES, k=10, modes=[mode], budgets=budgets)[mode]
    for hits, scores in zip(found, by_hand(index, queries, mode), strict=True):
        expected = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
        assert [s for _, s in hits] == pytest.approx([s for _, s in expected], abs=2e-6)
        for passage_id, score in hits:
            assert score == pytest.approx(scores[passage_id], abs=2e-6)


def test_hybrid_is_half_and_half_after_min_max(index: PassageIndex, encoder: Encoder) -> None:
    found = searcher(index, encoder).search(QUERIES, k=1000)
    for dense, sparse, hybrid in zip(found["dense"], found["sparse"], found["hybrid"], strict=True):
        scaled = []
        for scores in (dict(dense), dict(sparse)):
            low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
            scaled.append({i: (s - low) / max(high - low, 1e-9) for i, s in scores.items()})
        assert len(hybrid) == len({*scaled[0], *scaled[1]})
        for passage_id, score in hybrid:
            assert score == pytest.approx((scaled[0].get(passage_id, 0) + scaled[1].get(passage_id, 0)) / 2, abs=1e-6)


def test_a_query_without_content_words_still_has_dense_and_hybrid(index: PassageIndex, encoder: Encoder) -> None:
    found = searcher(index, encoder).search(["the of and"], k=5)
    assert found["sparse"] == [[]]
    assert [i for i, _ in found["hybrid"][0]] == [i for i, _ in found["dense"][0]]


def test_lancedbs_own_index_over_slots_finds_the_same_best_passage(tmp_path: Path, encoder: Encoder) -> None:
    own = fill(encoder, str(tmp_path / "index"))
    import lancedb
    from lancedb.index import IvfFlat

    table = lancedb.connect(own.uri).open_table("passages")
    table.create_index("reps", config=IvfFlat(distance_type="cosine", num_partitions=2))
    asked = encoder.encode_queries(QUERIES)
    ours = searcher(PassageIndex.open(own.uri), encoder).search(QUERIES, modes=["dense"])["dense"]
    for query, hits in enumerate(ours):
        own_MH = asked.vectors_MH[asked.offsets[query] : asked.offsets[query + 1]]
        found = table.search(own_MH, vector_column_name="reps").distance_type("cosine").nprobes(2).limit(3).to_list()
        assert found[0]["id"] == hits[0][0]


def test_authors_switches_change_scores_not_defaults(index: PassageIndex, encoder: Encoder) -> None:
    default = searcher(index, encoder).search(QUERIES, modes=["dense"])["dense"][0]
    summed = searcher(index, encoder, maxsim="sum-floored").search(QUERIES, modes=["dense"])["dense"][0]
    rough = searcher(index, encoder, score_dtype="bfloat16-legacy").search(QUERIES, modes=["dense"])["dense"][0]
    assert dict(summed)[default[0][0]] == pytest.approx(4 * default[0][1], abs=1e-5)
    assert len({s for _, s in rough}) < len({s for _, s in default})


def test_opening_finds_the_encoder_of_the_manifest(index: PassageIndex, encoder: Encoder) -> None:
    opened = open_searcher(index.uri)
    assert opened.search(QUERIES, k=3) == searcher(index, encoder).search(QUERIES, k=3)


def test_other_weights_are_refused(index: PassageIndex) -> None:
    with pytest.raises(ValueError, match=r"made by another retriever(.|\n)*weights: "):
        open_searcher(index.uri, SearchOptions(index=index.uri, backbone="minilm"))


def test_of_a_retriever_that_differs_in_all_few_differences_are_named(index: PassageIndex) -> None:
    other = index.manifest.model_copy(update={"retriever": load_retriever("minilm-pooled")})
    with pytest.raises(ValueError, match=r"take that one, or another index(.|\n)*and \d+ more") as caught:
        check_same(index.manifest, other, index.uri)
    assert len(str(caught.value).splitlines()) == 7


def test_any_index_is_ranked_by_bm25_of_its_texts(
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


def test_modes_and_budgets_that_are_not_there(index: PassageIndex, encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="'fuzzy' is no score to rank by"):
        searcher(index, encoder).search(["x"], modes=["fuzzy"])
    with pytest.raises(ValueError, match="2 queries but 1 budgets"):
        searcher(index, encoder).search(["x", "y"], budgets=[1])
    assert searcher(index, encoder).search([]) == {"dense": [], "sparse": [], "hybrid": []}


def test_a_query_that_is_no_text_is_named(index: PassageIndex, encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="query number 1 holds a lone surrogate at character 3"):
        searcher(index, encoder).search(["heat", "bad\ud800"])

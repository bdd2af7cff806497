"""Candidate search: exact scores, filters, and fragments without sketches."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex, ids_filter
from diffretriever.schemas.accelerate import AccelerateJob, CodeLayout
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from tests.index.index_cases import compact
from tests.search.conftest import QUERIES, fill
from tests.search.dense_cases import build_codes, opened, prepare, streamed


@pytest.fixture(params=["vectors", "means"])
def layout(request: pytest.FixtureRequest) -> CodeLayout:
    chosen: CodeLayout = request.param
    return chosen


@pytest.fixture
def index(layout: CodeLayout, encoder: Encoder, tmp_path: Path) -> PassageIndex:
    """Of 60 passages in three fragments, all known to the candidate index."""
    made = fill(encoder, str(tmp_path / "index"))
    return prepare(made, layout)


def candidate_index_of(index: PassageIndex) -> CandidateIndex:
    search = opened(index)
    assert isinstance(search, CandidateSearch)
    return search.candidate_index


def test_scores_of_candidates_are_exact(index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    scores = [dict(hits) for hits in streamed(index, queries, 1000)]
    for budget in ("auto", 20):
        search = opened(index, search_budget=budget)
        for query, hits in enumerate(search.search(queries, 10)):
            assert len(hits) == len({i for i, _ in hits}) == 10
            assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
            assert all(scores[query][i] == score for i, score in hits)


def test_candidates_are_filtered_before_they_are_counted(index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    admitted = {f"d{number}" for number in range(0, 60, 2)}
    part = IndexPart.filtered(index, ids_filter(admitted))
    search = opened(part, search_budget=12)
    assert isinstance(search, CandidateSearch)
    exact = [[hit for hit in hits if hit[0] in admitted] for hits in streamed(index, queries, 60)]
    hits_of_part, without = search.search(queries, 12), opened(index, search_budget=12).search(queries, 12)
    for hits, right, of_all in zip(hits_of_part, exact, without, strict=True):
        assert len(hits) == 12
        assert set(hits) <= set(right)
        assert {hit for hit in of_all if hit[0] in admitted} <= set(hits), "nothing is lost by a filter"
    # No more than there are candidates: all of them are scored.
    few = IndexPart.filtered(index, ids_filter(sorted(admitted)[:12]))
    few_ids = set(sorted(admitted)[:12])
    assert opened(few, search_budget=12).search(queries, 5) == [
        [h for h in hits if h[0] in few_ids][:5] for hits in exact
    ]


def test_fragments_without_sketches_are_scanned(index: PassageIndex, layout: CodeLayout, encoder: Encoder) -> None:
    fill(encoder, index.uri, prefix="new")
    index.refresh()
    queries = encoder.encode_queries(QUERIES)
    news = [[hit for hit in hits if hit[0].startswith("new")] for hits in streamed(index, queries, 120)]
    for step in ("no codes", "codes alone", "all"):
        if step == "codes alone":
            build_codes(index, layout)
        if step == "all":
            prepare(index, layout)
        search = opened(index)
        assert isinstance(search, CandidateSearch)
        knows_all = step == "all"
        assert len(search.candidate_index.passages) == (120 if knows_all else 60)
        for hits, new in zip(search.search(queries, 120), news, strict=True):
            assert len({i for i, _ in hits}) == len(hits), "none twice"
            if not knows_all:
                assert [hit for hit in hits if hit[0].startswith("new")] == new


def test_accelerate_sketches_new_fragments(
    index: PassageIndex, layout: CodeLayout, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    queries = encoder.encode_queries(QUERIES)
    fill(encoder, index.uri, prefix="new")
    index.refresh()
    compact(index)
    assert isinstance(opened(index), StreamingScan)
    accelerate(AccelerateJob(index=index.uri))
    assert len(candidate_index_of(index).passages) == 120
    scores = [dict(hits) for hits in streamed(index, queries, 120)]
    for query, hits in enumerate(opened(index).search(queries, 10)):
        assert len(hits) == 10
        assert all(scores[query][i] == score for i, score in hits)
    assert (
        f"calibrated to recall 0.9 with 60 passages, and now there are 120: run `python jobs/accelerate_index.py "
        f"--index {index.uri} --candidates`" in caplog.text
    )
    caplog.clear()
    accelerate(AccelerateJob(index=index.uri))
    assert len(candidate_index_of(index).passages) == 120


def test_codes_of_means_without_candidates_are_reported_as_unused(encoder: Encoder, tmp_path: Path) -> None:
    made = fill(encoder, str(tmp_path / "index"))
    assert accelerate(AccelerateJob(index=made.uri, beside="means")).only_streams
    accelerate(AccelerateJob(index=made.uri, beside="vectors"))
    prepare(made)
    assert not accelerate(AccelerateJob(index=made.uri, beside="means")).only_streams, "sketches are made of new codes"
    assert not accelerate(AccelerateJob(index=made.uri)).only_streams
    assert not accelerate(AccelerateJob(index=made.uri, beside="vectors")).only_streams

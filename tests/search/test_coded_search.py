"""Search by 8-bit codes gives what the scan of the stored vectors gives, through every change of the table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations
from diffretriever.index.fragment_codes import FragmentCodes, quantise
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.coded import CodedQueries, Codes
from diffretriever.scoring.maxsim import maxsim
from diffretriever.scoring.topk import Hits
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.calibrate import choose_budget, recall_by_budget, sample_queries, write_settings
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.mean import MeanProposer
from diffretriever.search.dense.segments import build_codes, open_segments
from diffretriever.search.dense.stream import StreamingScan
from schemas.candidates import CandidateSettings
from schemas.jobs import SearchOptions
from tests.search.conftest import QUERIES, fill

CPU = torch.device("cpu")


def open_at(index: PassageIndex, **options: object) -> DenseSearch:
    return open_dense(index, SearchOptions.model_validate({"index": index.uri, **options}), CPU)


def streamed(index: PassageIndex, queries: Representations, k: int) -> Hits:
    return StreamingScan(index, SearchOptions(index=index.uri), CPU, 4).search(queries, k)


def assert_same_hits(found: Hits, expected: Hits) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs, "bit for bit"


@pytest.fixture
def own_index(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    return fill(encoder, str(tmp_path / "index"))


@pytest.mark.parametrize("budget", [1, 4, 20])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_the_same_passages_with_the_same_scores(budget: int, k: int, own_index: PassageIndex, encoder: Encoder) -> None:
    assert isinstance(open_at(own_index), StreamingScan)
    assert build_codes(own_index) == 3
    assert build_codes(own_index) == 0
    queries = encoder.encode_queries(QUERIES, [budget] * len(QUERIES))
    search = open_at(own_index)
    assert isinstance(search, CodedScan)
    assert_same_hits(search.search(queries, k), streamed(own_index, queries, k))
    assert_same_hits(open_at(own_index, memory_mb=1).search(queries, k), streamed(own_index, queries, k))


def test_deleted_appended_and_compacted(own_index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    build_codes(own_index)
    own_index.delete(["d0", "d7", "d30", "d59"])
    assert_same_hits(open_at(own_index).search(queries, 10), streamed(own_index, queries, 10))
    fill(encoder, own_index.uri, prefix="new")
    own_index.refresh()
    both = open_at(own_index)
    assert isinstance(both, CodedScan)
    assert_same_hits(both.search(queries, 10), streamed(own_index, queries, 10))
    build_codes(own_index)
    assert_same_hits(open_at(own_index).search(queries, 10), streamed(own_index, queries, 10))
    own_index.compact()
    assert isinstance(open_at(own_index), StreamingScan)
    build_codes(own_index)
    assert_same_hits(open_at(own_index).search(queries, 10), streamed(own_index, queries, 10))


def test_only_what_can_be_among_the_best_is_read(own_index: PassageIndex, encoder: Encoder) -> None:
    build_codes(own_index)
    search = open_at(own_index)
    assert isinstance(search, CodedScan)
    search.search(encoder.encode_queries(QUERIES[:1]), 1)
    assert 1 <= search.rescored < len(own_index)


def test_the_authors_scores_are_computed_from_the_vectors(own_index: PassageIndex) -> None:
    build_codes(own_index)
    assert isinstance(open_at(own_index, score_dtype="bfloat16-legacy"), StreamingScan)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    hidden=st.sampled_from([1, 3, 64, 1000]),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
    spiky=st.booleans(),
)
def test_no_score_leaves_its_bound(seed: int, hidden: int, counts: list[int], scale: float, spiky: bool) -> None:
    rng = np.random.default_rng(seed)
    vectors = scale * rng.standard_normal((sum(counts), hidden)).astype(np.float32)
    query = rng.standard_normal((6, hidden)).astype(np.float32)
    if spiky:
        vectors[:, 0] *= 100
        query[:, 0] *= 100
    vectors, query = vectors.astype(np.float16).astype(np.float32), query.astype(np.float16).astype(np.float32)
    codes = coded(vectors, counts)
    offsets = np.array([0, 1, 6])
    wide, narrow = CodedQueries(query, offsets), CodedQueries(query, offsets, bits=8)
    exact = maxsim(torch.from_numpy(query), offsets, torch.from_numpy(vectors), codes.vectors.offsets).numpy()
    for queries, scores in (
        (wide, wide.kernel_scores(codes.vectors)),
        (wide, wide.decoded_scores(codes.vectors, CPU)),
        (narrow, narrow.kernel_scores(codes.vectors)),
        (narrow, narrow.product_scores(codes.vectors)),
    ):
        for q in range(2):
            some = np.array(counts) > 0
            assert (scores[q][~some] == -np.inf).all()
            gap = np.abs(scores[q][some].astype(np.float64) - exact[q][some])
            assert (gap <= queries.slack(q, codes.errors_P, codes.norms_P)[some]).all()


def coded(vectors: np.ndarray, counts: list[int]) -> FragmentCodes:
    codes, scales, errors = quantise(vectors)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    spans = list(pairwise(offsets))
    norms = np.linalg.norm(vectors, axis=1)
    return FragmentCodes(
        vectors=Codes(codes, scales, offsets),
        means=Codes(codes, scales, np.arange(len(codes) + 1)),
        errors_P=np.array([errors[a:b].max(initial=0) for a, b in spans], np.float32),
        norms_P=np.array([norms[a:b].max(initial=0) for a, b in spans], np.float32),
        rows_P=np.arange(len(counts), dtype=np.uint32),
        stored_NH=vectors.astype(np.float16),
        ids=pa.array(map(str, range(len(counts))), pa.large_string()),
    )


@pytest.fixture
def proposed(own_index: PassageIndex) -> PassageIndex:
    build_codes(own_index)
    settings = CandidateSettings(
        proposer="mean", search_budget=30, top_k=10, target=0.9, measured=0.9, sample=1, passages=60, version=1
    )
    write_settings(own_index, settings)
    return own_index


def test_candidates_have_exact_scores_and_a_large_budget_loses_nothing(
    proposed: PassageIndex, encoder: Encoder
) -> None:
    queries = encoder.encode_queries(QUERIES)
    scores = [dict(hits) for hits in streamed(proposed, queries, 1000)]
    for budget in ("auto", 12):
        found = open_at(proposed, search_budget=budget).search(queries, 10)
        assert all(len(hits) == 10 for hits in found)
        assert all(scores[q][i] == s for q, hits in enumerate(found) for i, s in hits)
    for options in ({"search_budget": 60}, {"search_budget": "exact"}):
        assert_same_hits(open_at(proposed, **options).search(queries, 10), streamed(proposed, queries, 10))


def test_candidates_know_deleted_passages_and_new_ones(proposed: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    gone = {i for hits in streamed(proposed, queries, 3) for i, _ in hits}
    proposed.delete(gone)
    fill(encoder, proposed.uri, prefix="new")
    proposed.refresh()
    found = open_at(proposed, search_budget=60).search(queries, 10)
    assert_same_hits(found, streamed(proposed, queries, 10))


def test_a_budget_without_candidates_is_an_error(own_index: PassageIndex) -> None:
    build_codes(own_index)
    with pytest.raises(ValueError, match="needs a candidate index"):
        open_at(own_index, search_budget=10)


def test_the_chosen_budget_reaches_its_recall(own_index: PassageIndex, encoder: Encoder) -> None:
    build_codes(own_index)
    proposer = MeanProposer.open(own_index, open_segments(own_index)[0])
    queries = sample_queries(own_index, encoder, 40)
    exact = streamed(own_index, queries, 10)
    budgets = list(range(1, 61))
    shares = recall_by_budget(proposer, queries, exact, budgets)
    assert (np.diff(shares, axis=0) >= 0).all()
    assert (shares[-1] == 1).all()
    budget, measured = choose_budget(shares, budgets, 0.9)
    assert measured >= 0.9
    assert budget < 60
    stream = StreamingScan(own_index, SearchOptions(index=own_index.uri), CPU, 4)
    search = CandidateSearch(proposer, [], stream, max(10, budget))
    found = search.search(queries, 10)
    overlap = [len({i for i, _ in a} & {i for i, _ in b}) / 10 for a, b in zip(found, exact, strict=True)]
    assert np.mean(overlap) >= 0.9

"""Candidates by centroids against sums that are computed one by one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.search.dense.codes import Segment, build_codes, open_segments
from diffretriever.search.dense.plaid import CentroidLists, PlaidProposer, collect, interact
from tests.search.conftest import QUERIES, fill


@pytest.fixture
def index(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    made = fill(encoder, str(tmp_path / "index"))
    build_codes(made)
    PlaidProposer.build(made, open_segments(made)[0])
    return made


def lists_of(segment: Segment) -> CentroidLists:
    held = segment.artefact.open_added("plaid.safetensors")
    assert held is not None
    return CentroidLists.read(held.folder)


def by_centroids(lists: CentroidLists, segment: Segment, query: np.ndarray, probes: int) -> dict[int, float]:
    """Return each found passage's score, the slow way."""
    products = query @ lists.centroids_CH.T
    best = np.argsort(-products, axis=1)[:, :probes]
    floors = [products[m, best[m, -1]] for m in range(len(query))]
    probed = set(best.ravel().tolist())
    scores = {}
    for passage, (begin, end) in enumerate(pairwise(segment.slots.vectors.offsets)):
        own = set(lists.nearest_N[begin:end].tolist())
        if own & probed:
            scores[passage] = sum(
                max([floor, *(products[m, c] for c in own if products[m, c] > floor)]) for m, floor in enumerate(floors)
            )
    return scores


def test_every_vector_is_listed_under_its_nearest_centroid(index: PassageIndex) -> None:
    for segment in open_segments(index)[0]:
        lists = lists_of(segment)
        products = segment.slots.vectors.decoded(np.arange(len(segment.slots.vectors.codes_NH))) @ lists.centroids_CH.T
        np.testing.assert_allclose(
            products[np.arange(len(products)), lists.nearest_N], products.max(axis=1), rtol=0, atol=1e-6
        )
        spans = list(pairwise(segment.slots.vectors.offsets))
        for centroid, (begin, end) in enumerate(pairwise(lists.borders)):
            owners = [p for p, (a, b) in enumerate(spans) if centroid in lists.nearest_N[a:b]]
            assert lists.entries_T[begin:end].tolist() == owners


@pytest.mark.parametrize("n", [1, 5, 60])
def test_passages_of_the_probed_lists_score_by_their_centroids(n: int, index: PassageIndex, encoder: Encoder) -> None:
    query = encoder.encode_queries(QUERIES[:1]).vectors_MH.astype(np.float32)
    for segment in open_segments(index)[0]:
        lists = lists_of(segment)
        gone = np.zeros(len(segment.codes), bool)
        passages, scores = lists.found(query, gone, segment.slots.vectors.offsets, n)
        assert not gone.any(), "left as it was"
        expected = by_centroids(lists, segment, query, lists.probes(n))
        assert set(passages.tolist()) == set(expected)
        np.testing.assert_allclose(scores, [expected[p] for p in passages.tolist()], rtol=1e-5)


def test_more_candidates_probe_more_lists_up_to_all(index: PassageIndex) -> None:
    lists = lists_of(open_segments(index)[0][0])
    probes = [lists.probes(n) for n in (1, 10, 100, 1000)]
    assert probes == sorted(probes)
    assert probes[0] == 4
    assert probes[-1] == len(lists.centroids_CH)


def test_proposals_come_best_first_over_all_segments(index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    segments = open_segments(index)[0]
    proposer = PlaidProposer.open(index, segments)
    for query, numbers in enumerate(proposer.propose(queries, 60)):
        own = queries.vectors_MH[queries.offsets[query] : queries.offsets[query + 1]].astype(np.float32)
        expected = {
            int(start) + passage: score
            for start, segment in zip(proposer.passages.starts[:-1], segments, strict=True)
            for passage, score in by_centroids(lists_of(segment), segment, own, lists_of(segment).probes(60)).items()
        }
        scores = [expected[number] for number in numbers.tolist()]
        assert len(scores) == len(expected) == 60
        np.testing.assert_allclose(scores, sorted(scores, reverse=True), rtol=1e-5)


def test_the_kernels_on_random_lists() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5, 40)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    nearest = rng.integers(0, 9, offsets[-1]).astype(np.int32)
    owners = np.repeat(np.arange(40), counts)
    entries = [np.unique(owners[nearest == c]) for c in range(9)]
    borders = np.concatenate([[0], np.cumsum([len(e) for e in entries])])
    seen, found = np.zeros(40, bool), np.empty(40, np.int64)
    seen[3] = True
    count = collect(np.concatenate(entries).astype(np.int32), borders, np.array([2, 5, 7]), seen, found)
    assert sorted(found[:count]) == sorted({p for c in (2, 5, 7) for p in entries[c].tolist()} - {3})
    products = rng.standard_normal((9, 3)).astype(np.float32)
    near, floors = rng.random(9) > 0.4, np.array([-0.1, 0.0, 0.3], np.float32)
    scores = np.empty(count, np.float32)
    interact(nearest, offsets, found[:count], products, near, floors, scores)
    for passage, score in zip(found[:count], scores, strict=True):
        own = [products[c] for c in nearest[offsets[passage] : offsets[passage + 1]] if near[c]]
        assert score == pytest.approx(np.maximum.reduce([floors, *own]).sum(), rel=1e-6)

"""Search by 8-bit codes equals the scan of the stored vectors."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import AccelerateJob, CodeLayout
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.codes import FragmentCodes, SlotCodes, quantise
from diffretriever.search.dense.resident import DeviceCodes, DeviceQueries
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from diffretriever.vectors.maxsim import CodedQueries, Codes, maxsim
from tests.index.compressed_cases import compressed
from tests.index.index_cases import compact
from tests.search.conftest import QUERIES, fill
from tests.search.dense_cases import CPU, assert_same_hits, build_codes, opened, streamed


@pytest.fixture
def own_index(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    return fill(encoder, str(tmp_path / "index"))


@pytest.mark.parametrize("budget", [1, 4, 20])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_search_by_codes_equals_the_stream(budget: int, k: int, own_index: PassageIndex, encoder: Encoder) -> None:
    assert isinstance(opened(own_index), StreamingScan)
    assert build_codes(own_index) == 3
    assert build_codes(own_index) == 0
    queries = encoder.encode_queries(QUERIES, [budget] * len(QUERIES))
    search = opened(own_index)
    assert isinstance(search, CodedScan)
    assert_same_hits(search.search(queries, k), streamed(own_index, queries, k))
    assert_same_hits(opened(own_index, memory_mb=1).search(queries, k), streamed(own_index, queries, k))


def kept_of(index: PassageIndex) -> list[str]:
    """Return which files of all that there can be lie beside the table."""
    names = ("vectors", "codes", "mean_codes")
    return [name for name in names if list(Path(index.uri).glob(f"codes/*/{name}.bin"))]


def test_accelerate_keeps_the_layout_of_codes(own_index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    all_files = ["vectors", "codes", "mean_codes"]
    files = {"vectors": all_files, "means": all_files[2:]}
    rounds: tuple[tuple[CodeLayout | None, CodeLayout], ...] = (
        (None, "vectors"),
        ("means", "means"),
        (None, "means"),
        ("vectors", "vectors"),
        ("means", "means"),
    )
    for requested, expected in rounds:
        accelerate(AccelerateJob(index=own_index.uri, beside=requested))
        assert kept_of(own_index) == files[expected]
        own_index.refresh()
        assert_same_hits(opened(own_index).search(queries, 10), streamed(own_index, queries, 10))
    own_index.delete(["d3"])
    compact(own_index)
    accelerate(AccelerateJob(index=own_index.uri))
    assert kept_of(own_index) == files["means"], "as before, though all fragments are new"
    own_index.refresh()
    assert isinstance(opened(own_index), StreamingScan)
    report = inspect(own_index, check=True).verification
    assert report is not None
    assert report.problems == []


def test_fragments_with_codes_of_means_only_are_scanned(own_index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    build_codes(own_index, "means")
    fill(encoder, own_index.uri, prefix="new")
    own_index.refresh()
    build_codes(own_index)
    search = opened(own_index)
    assert isinstance(search, CodedScan)
    assert_same_hits(search.search(queries, 10), streamed(own_index, queries, 10))


def test_a_layout_for_an_index_without_codes_is_rejected(own_index: PassageIndex) -> None:
    made = compressed(own_index, "product4")
    with pytest.raises(ValueError, match=r"has no 8-bit codes.*leave it out"):
        accelerate(AccelerateJob(index=made.uri, beside="means"))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    hidden=st.sampled_from([1, 3, 64, 1000]),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 50.0]),
    spiky=st.booleans(),
)
def test_scores_by_codes_stay_within_their_bounds(
    seed: int, hidden: int, counts: list[int], scale: float, spiky: bool
) -> None:
    rng = np.random.default_rng(seed)
    vectors = scale * rng.standard_normal((sum(counts), hidden)).astype(np.float32)
    query = rng.standard_normal((6, hidden)).astype(np.float32)
    if spiky:
        vectors[:, 0] *= 100
        query[:, 0] *= 100
    vectors, query = vectors.astype(np.float16).astype(np.float32), query.astype(np.float16).astype(np.float32)
    codes = slots_of(coded(vectors, counts))
    offsets = np.array([0, 1, 6])
    wide, narrow = CodedQueries(query, offsets), CodedQueries(query, offsets, bits=8)
    exact = maxsim(torch.from_numpy(query), offsets, torch.from_numpy(vectors), codes.vectors.offsets).numpy()
    resident, on_device = DeviceQueries(query, offsets, CPU), copied(codes)
    for scores, slack in (
        (wide.scores(codes.vectors), slack_of(wide, codes)),
        (narrow.scores(codes.vectors), slack_of(narrow, codes)),
        (resident.scores(on_device).numpy(), resident.slack(on_device).numpy()),
    ):
        has_vectors_P = np.array(counts) > 0
        assert (scores[:, ~has_vectors_P] == -np.inf).all()
        gap = np.abs(scores[:, has_vectors_P].astype(np.float64) - exact[:, has_vectors_P])
        assert (gap <= slack[:, has_vectors_P]).all()


def slack_of(queries: CodedQueries, codes: SlotCodes) -> np.ndarray:
    return np.stack([queries.slack(query, codes.errors_P, codes.norms_P) for query in range(len(queries))])


def copied(codes: SlotCodes) -> DeviceCodes:
    return DeviceCodes.copy(codes.vectors, codes.errors_P, codes.norms_P, CPU)


def coded(vectors: np.ndarray, counts: list[int]) -> FragmentCodes:
    codes, scales, errors = quantise(vectors)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    spans = list(pairwise(offsets))
    norms = np.linalg.norm(vectors, axis=1)
    slots = SlotCodes(
        vectors=Codes(codes, scales, offsets),
        errors_P=np.array([errors[a:b].max(initial=0) for a, b in spans], np.float32),
        norms_P=np.array([norms[a:b].max(initial=0) for a, b in spans], np.float32),
        copy_NH=vectors.astype(np.float16),
    )
    means = Codes(codes, scales, np.arange(len(codes) + 1))
    return FragmentCodes(means, np.arange(len(counts), dtype=np.uint32), slots)


def slots_of(codes: FragmentCodes) -> SlotCodes:
    assert codes.slots is not None
    return codes.slots

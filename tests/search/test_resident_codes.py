"""Codes in a device's memory, tested on the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense import resident
from diffretriever.search.dense.coded import CodedPassages, CodedScan
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.resident import DeviceCodes, ResidentCodes
from diffretriever.studies.planning import Shape, search_memory
from tests.search.conftest import QUERIES, fill
from tests.search.dense_cases import CPU, assert_same_hits, build_codes, stream_of, streamed

SHARES = {"all": 1.0, "some": 0.6, "nothing": 0.0}
"""Share of the codes that fits the free memory."""


@pytest.fixture(scope="module")
def coded_index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    """Sixty passages in three fragments, some of them deleted."""
    index = fill(encoder, str(tmp_path_factory.mktemp("coded") / "index"))
    build_codes(index)
    index.delete(["d0", "d7", "d30", "d59"])
    return index


@pytest.fixture(autouse=True)
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no memory of a GPU."""
    monkeypatch.setattr(resident, "free_memory", lambda _: 0)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many passages each copy to the device had."""
    copy, made = DeviceCodes.copy, []

    def counted(*args: Any) -> DeviceCodes:
        made.append(len(args[0]))
        return copy(*args)

    monkeypatch.setattr(DeviceCodes, "copy", counted)
    return made


def bytes_of(codes: ResidentCodes) -> int:
    return sum(piece.bytes for piece in codes._pieces)


def search_of(index: PassageIndex, room: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> CodedScan:
    """A search by small pieces, a few queries at a time."""
    monkeypatch.setattr(resident, "_PIECE_BYTES", 2000)
    segments, uncoded = open_segments(index)
    free = int(SHARES[room] * bytes_of(ResidentCodes(segments, CPU, 1)))
    monkeypatch.setattr(resident, "free_memory", lambda _: free)
    codes = ResidentCodes(segments, CPU, 1)
    codes._queries_at_once = at_once
    return CodedScan(CodedPassages(segments), uncoded, stream_of(index), SearchOptions(index=index.uri), codes)


@pytest.mark.parametrize("room", SHARES)
@pytest.mark.parametrize("k", [1, 1000])
def test_codes_on_a_device_give_the_hits_of_the_stream(
    k: int, room: str, coded_index: PassageIndex, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = encoder.encode_queries(QUERIES, [1, 2, 4, 4])
    search = search_of(coded_index, room, 3, monkeypatch)
    for _ in range(2):
        assert_same_hits(search.search(queries, k), streamed(coded_index, queries, k))


def test_searches_share_codes_on_a_device(
    encoder: Encoder, copies: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of the index brings its new fragments alone, and room is needed for no others."""
    index = fill(encoder, str(tmp_path / "index"))
    build_codes(index)
    queries = encoder.encode_queries(QUERIES)
    before = search_of(index, "all", 4, monkeypatch)
    assert_same_hits(before.search(queries, 10), streamed(index, queries, 10))
    assert sum(copies) == 60
    index.delete(["d1", "d31"])
    monkeypatch.setattr(resident, "free_memory", lambda _: 0)
    segments, _ = open_segments(index)
    fewer = CodedScan(
        CodedPassages(segments),
        [],
        stream_of(index),
        SearchOptions(index=index.uri),
        ResidentCodes(segments, CPU, 1),
    )
    for _ in range(2):
        assert_same_hits(fewer.search(queries, 10), streamed(index, queries, 10))
    assert sum(copies) == 60
    fill(encoder, index.uri, prefix="new")
    index.refresh()
    build_codes(index)
    more = search_of(index, "all", 4, monkeypatch)
    assert_same_hits(more.search(queries, 10), streamed(index, queries, 10))
    assert sum(copies) == 120
    del before, fewer, more
    assert not [key for key in resident._shared if str(tmp_path) in str(key)]


def test_codes_leave_gpu_memory_for_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def room(free: int, ours: int, held: int) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 1000))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: ours)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held)
        return resident.free_memory(torch.device("cuda"))

    assert room(free=1000, ours=0, held=0) == 750
    assert room(free=400, ours=200, held=400) == 450, "three quarters of 600: what torch holds and does not use is free"
    assert room(free=700, ours=300, held=300) == 450, "a quarter of the device stays free"
    assert room(free=100, ours=900, held=900) == 0


def test_planned_memory_covers_the_codes(coded_index: PassageIndex) -> None:
    from tests.search.test_coded_search import slots_of

    segments, _ = open_segments(coded_index)
    passages = sum(len(segment.codes) for segment in segments)
    vectors = sum(len(slots_of(segment.codes).vectors.scales_N) for segment in segments)
    hidden = segments[0].codes.means.codes_NH.shape[1]
    shape = Shape(passages, hidden, vectors / passages, 0, 0)
    codes_bytes = bytes_of(ResidentCodes(segments, CPU, 1))
    assert codes_bytes <= search_memory(shape)
    assert math.isclose(codes_bytes, search_memory(shape), rel_tol=0.3)

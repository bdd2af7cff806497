"""All readers and searches of a compressed index get the decoded vectors, bit for bit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from diffretriever.index.history import history
from diffretriever.index.parts import IndexPart
from diffretriever.index.rewrite import sample_of
from diffretriever.index.table import PassageIndex, ids_filter
from diffretriever.index.vectors import codec_of, read_packed
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.compressed import CompressedScan, build_fragment_packed, open_packed
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from diffretriever.vectors.representations import read_vectors
from tests.index.compressed_cases import (
    CPU,
    MOST_VECTORS,
    QUERIES,
    add,
    assert_sound,
    compressed,
    fill,
    found,
    representations,
    stored_vectors,
    streamed,
)
from tests.index.index_cases import compact, ids_of
from tests.search.dense_cases import build_codes

CODECS = ["product1", "product2", "product4"]


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    return fill(str(tmp_path / "index"), 40, 30)


def test_a_codec_sample_is_in_table_order(index: PassageIndex) -> None:
    vectors = stored_vectors(index)
    assert np.array_equal(sample_of(index, len(vectors)), vectors)
    rows = [np.flatnonzero((vectors == vector).all(axis=1))[0] for vector in sample_of(index, 30)]
    assert len(rows) == 30
    assert (np.diff(rows) > 0).all()
    assert max(rows) > 60


@pytest.mark.parametrize("codec", CODECS)
def test_the_stored_vectors_are_the_decoded_ones(codec: str, index: PassageIndex) -> None:
    originals = stored_vectors(index)
    made = compressed(index, codec)
    assert made.dataset.schema.names[-2:] == ["codes", "row_checksum"]
    assert "reps" not in made.dataset.schema.names
    codes, offsets = read_packed(made.dataset.to_table(columns=["codes"]))
    assert made.manifest.codec is not None
    decoded = codec_of(made.uri, made.manifest).decode(codes).astype(np.float16)
    assert np.array_equal(stored_vectors(made), decoded)
    assert offsets[-1] == len(originals)
    assert (decoded.astype(np.float32) * originals).sum(axis=1).mean() > 0.9
    taken = made.take(np.array([3, 50]), ["id", "reps"])
    assert taken.schema.names == ["id", "reps"]
    expected = np.concatenate([decoded[slice(*offsets[row : row + 2])] for row in (3, 50)])
    assert np.array_equal(read_vectors(taken)[0], expected)
    by_fragment = [b for f in made.fragments() for b in made.fragment_batches(f, ["id", "reps"], 9)]
    assert by_fragment[0].schema.names == ["id", "reps", "_rowaddr"]
    assert np.array_equal(np.concatenate([read_vectors(batch)[0] for batch in by_fragment]), decoded)
    assert_sound(made)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_search_by_codes_gives_the_same_bits_as_the_stream(
    codec: str, k: int, index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compressed(index, codec)
    assert found(made, k) == streamed(made, k)
    narrow = StreamingScan(made, SearchOptions(index=made.uri), CPU)
    monkeypatch.setattr("diffretriever.search.dense.stream._MAX_BATCH_ROWS", 1)
    search = CompressedScan(made, narrow, *open_packed(made))
    assert search.search(QUERIES, k) == streamed(made, k)
    build_fragment_packed(made, made.fragments()[0])
    assert found(made, k) == streamed(made, k)
    search = CompressedScan(made, narrow, *open_packed(made))
    assert search.search(QUERIES, k) == streamed(made, k)


def test_filtered_compressed_search_equals_the_stream(tmp_path: Path) -> None:
    made = compressed(fill(str(tmp_path / "i"), 40, 30), "product2")
    made.delete(["p3", "p50"])
    admitted = {f"p{number}" for number in range(1, 70, 3)} - {"p50"}
    right = [[hit for hit in hits if hit[0] in admitted][:5] for hits in streamed(made, 70)]
    part = IndexPart.filtered(made, ids_filter(sorted(admitted)))
    assert len(part) == len(admitted)
    assert found(part, 5) == right
    build_fragment_packed(made, made.fragments()[0])
    assert found(part, 5) == right
    assert streamed(part, 5) == right
    assert [len(hits) for hits in found(IndexPart.filtered(made, "id = 'nobody'"), 5)] == [0] * len(QUERIES)


@pytest.mark.parametrize("codec", ["product4", "product2"])
def test_a_compressed_index_survives_all_changes(codec: str, index: PassageIndex) -> None:
    made = compressed(index, codec)
    add(made, ["new1", "new2", "p5"], seed=9, replaced=["p5"], text="new")
    assert made.delete(["p0", "p60", "nothing"]) == 2
    assert sorted(ids_of(made)) == sorted({*(f"p{i}" for i in range(70)), "new1", "new2"} - {"p0", "p60"})
    assert made.passages(["p5"])["p5"]["text"] == "new p5"
    assert_sound(made)
    assert found(made, 100) == streamed(made, 100)
    written = representations(3, seed=9).vectors_MH
    assert (stored_vectors(made)[-len(written) :] * written.astype(np.float32)).sum(axis=1).min() > 0.9
    before = stored_vectors(made)
    compact(made, timedelta(0))
    assert np.array_equal(stored_vectors(made), before)
    assert made.manifest == PassageIndex.open(made.uri).manifest
    assert_sound(made)
    assert found(made, 100) == streamed(made, 100)


def test_8_bit_codes_encode_the_decoded_vectors(index: PassageIndex) -> None:
    assert build_codes(index) == 2
    made = compressed(index, "product2")
    assert found(made, 10) == streamed(made, 10), "codes of the vectors before do not count"
    assert build_codes(made) == 2
    assert found(made, 10, CodedScan) == streamed(made, 10)
    add(made, ["new"], seed=3)
    assert found(made, 10, CodedScan) == streamed(made, 10)
    assert_sound(made)


def test_a_reader_of_the_uncompressed_version_keeps_its_vectors(index: PassageIndex) -> None:
    originals, hits = stored_vectors(index), streamed(index, 20)
    made = compressed(index, "product1")
    assert np.array_equal(stored_vectors(index), originals)
    assert found(PassageIndex.open(index.uri, index.version), 20, StreamingScan) == hits
    assert [v.change for v in history(made)] == ["created", "appended", "appended", "compressed"]
    assert (history(made)[-1].rows, history(made)[-1].added, history(made)[-1].removed) == (70, 0, 0)
    index.refresh()
    assert (index.manifest, index.version) == (made.manifest, made.version)


def test_accelerate_keeps_an_index_compressed(index: PassageIndex) -> None:
    build_codes(index)
    made = compressed(index, "product2")
    build_codes(made)
    hits = streamed(made, 10)
    done = accelerate(AccelerateJob(index=made.uri)).files
    assert made.manifest.codec is not None
    vectors = sum(f.count_rows() for f in made.fragments()) * MOST_VECTORS
    assert (done["packed"].built, "codes" in done) == (2, False)
    assert done["packed"].bytes < vectors * (made.manifest.codec.width + 4) + 70 * 20
    compact(made, timedelta(0))
    accelerate(AccelerateJob(index=made.uri))
    assert not list((Path(made.uri) / "codes").glob("*/")), "decoded vectors made before go"
    with patch.object(PassageIndex, "batches", side_effect=AssertionError("the table is not read")):
        assert found(made, 10) == hits
    assert_sound(made)
    add(made, ["new1", "p5"], seed=9, replaced=["p5"])
    made.delete(["p60"])
    assert found(made, 100) == streamed(made, 100), "some fragments are mapped, one is not"
    assert_sound(made)
    report = inspect(made, check=False).codes
    assert report is not None
    assert (report.fragments, report.missing_fragments, report.missing_rows) == (1, 1, 2)

"""A compressed index: whoever reads or searches it sees the decoded vectors, to the bit, through all that it lives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.codecs.product import load_codec
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex, ids_filter
from diffretriever.index.vectors import codec_place, read_packed
from diffretriever.representations import read_vectors
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense.compressed import CompressedScan, build_fragment_packed, open_packed
from diffretriever.search.dense.stream import StreamingScan
from tests.index.compressed_cases import (
    CPU,
    QUERIES,
    assert_sound,
    compressed,
    fill,
    found,
    stored_vectors,
    streamed,
)

CODECS = ["product1", "product2", "product4"]


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    return fill(str(tmp_path / "index"), 40, 30)


@pytest.mark.parametrize("codec", CODECS)
def test_the_stored_vectors_are_the_decoded_ones(codec: str, index: PassageIndex) -> None:
    originals = stored_vectors(index)
    made = compressed(index, codec)
    assert made.dataset.schema.names[-2:] == ["codes", "row_checksum"]
    assert "reps" not in made.dataset.schema.names
    codes, offsets = read_packed(made.dataset.to_table(columns=["codes"]))
    assert made.manifest.codec is not None
    decoded = load_codec(codec_place(made.uri, made.manifest.codec.digest)).decode(codes).astype(np.float16)
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
    search = CompressedScan(made, narrow)
    assert search.search(QUERIES, k) == streamed(made, k)
    build_fragment_packed(made, made.fragments()[0])
    assert found(made, k) == streamed(made, k)
    search = CompressedScan(made, narrow, *open_packed(made))
    assert search.search(QUERIES, k) == streamed(made, k)


def test_a_filter_leaves_packed_passages_out(tmp_path: Path) -> None:
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

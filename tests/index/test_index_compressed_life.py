"""What becomes of a compressed index: appended to, compacted, searched by 8-bit codes, damaged, read at old times."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from diffretriever.codecs.product import load_codec
from diffretriever.index.history import history
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_place, read_packed
from diffretriever.representations import read_vectors
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.codes import build_codes
from diffretriever.search.dense.compressed import PACKED
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from tests.index.compressed_cases import (
    MOST_VECTORS,
    add,
    assert_sound,
    compressed,
    fill,
    found,
    representations,
    stored_vectors,
    streamed,
)
from tests.index.damaged_cases import resealed


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    return fill(str(tmp_path / "index"), 40, 30)


@pytest.mark.parametrize("codec", ["product4", "product2"])
def test_appended_replaced_deleted_and_compacted(codec: str, index: PassageIndex) -> None:
    made = compressed(index, codec)
    add(made, ["new1", "new2", "p5"], seed=9, replaced=["p5"], text="new")
    assert made.delete(["p0", "p60", "nothing"]) == 2
    assert sorted(made.digests()) == sorted({*(f"p{i}" for i in range(70)), "new1", "new2"} - {"p0", "p60"})
    assert made.passages(["p5"])["p5"]["text"] == "new p5"
    assert_sound(made)
    assert found(made, 100) == streamed(made, 100)
    written = representations(3, seed=9).vectors_MH
    assert (stored_vectors(made)[-len(written) :] * written.astype(np.float32)).sum(axis=1).min() > 0.9
    before = stored_vectors(made)
    made.compact(timedelta(0))
    assert np.array_equal(stored_vectors(made), before)
    assert made.manifest == PassageIndex.open(made.uri).manifest
    assert_sound(made)
    assert found(made, 100) == streamed(made, 100)


def test_eight_bit_codes_are_made_of_the_decoded_vectors(index: PassageIndex) -> None:
    assert build_codes(index) == 2
    made = compressed(index, "product2")
    assert found(made, 10) == streamed(made, 10), "codes of the vectors before do not count"
    assert build_codes(made) == 2
    assert found(made, 10, CodedScan) == streamed(made, 10)
    add(made, ["new"], seed=3)
    assert found(made, 10, CodedScan) == streamed(made, 10)
    assert_sound(made)


def test_a_reader_of_the_version_before_keeps_its_vectors(index: PassageIndex) -> None:
    originals, hits = stored_vectors(index), streamed(index, 20)
    made = compressed(index, "product1")
    assert np.array_equal(stored_vectors(index), originals)
    assert found(PassageIndex.open(index.uri, index.version), 20, StreamingScan) == hits
    assert [v.change for v in history(made)] == ["created", "appended", "appended", "compressed"]
    assert (history(made)[-1].rows, history(made)[-1].added, history(made)[-1].removed) == (70, 0, 0)
    index.refresh()
    assert (index.manifest, index.version) == (made.manifest, made.version)


def test_kept_vectors_stay_what_is_searched(index: PassageIndex) -> None:
    originals = stored_vectors(index)
    made = compressed(index, "product2", keep=True)
    assert {"reps", "codes"} <= set(made.dataset.schema.names)
    assert np.array_equal(stored_vectors(made), originals)
    assert found(made, 10, StreamingScan) == streamed(index, 10)
    assert "product2" not in made.manifest.title
    add(made, ["new"], seed=3)
    assert_sound(made)
    last = made.dataset.to_table(filter="id = 'new'")
    assert made.manifest.codec is not None
    codec = load_codec(codec_place(made.uri, made.manifest.codec.digest))
    assert np.array_equal(read_packed(last)[0], codec.encode(read_vectors(last)[0]))

    dropped = compressed(made, "product2")
    assert "reps" not in dropped.dataset.schema.names
    assert dropped.manifest.title.endswith(", product2")
    assert found(dropped, 10) == streamed(dropped, 10)


def test_the_codec_is_no_part_of_the_fingerprint(index: PassageIndex) -> None:
    made = compressed(index, "product2")
    assert made.manifest.fingerprint == index.manifest.fingerprint
    assert made.manifest.differences(index.manifest) == []


def test_an_index_made_fast_stays_compressed(index: PassageIndex) -> None:
    build_codes(index)
    made = compressed(index, "product2")
    build_codes(made)
    hits = streamed(made, 10)
    done = accelerate(AccelerateJob(index=made.uri)).files
    assert made.manifest.codec is not None
    vectors = sum(f.count_rows() for f in made.fragments()) * MOST_VECTORS
    assert (done["packed"].made, "codes" in done) == (2, False)
    assert done["packed"].bytes < vectors * (made.manifest.codec.width + 4) + 70 * 20
    made.compact(timedelta(0))
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("packed", "packed vectors beside the table differ"),
        ("rows", "packed vectors of a fragment are damaged"),
        ("counts", "packed vectors of a fragment are damaged"),
    ],
)
def test_damage_beside_the_table_is_found(name: str, kind: str, index: PassageIndex) -> None:
    made = compressed(index, "product2")
    accelerate(AccelerateJob(index=made.uri))
    folder = PACKED.folder_of(made, made.fragments()[0]).path
    file = folder / f"{name}.bin"
    data = bytearray(file.read_bytes())
    # The last byte of the last number.
    data[-1] ^= 1
    file.write_bytes(data)
    resealed(folder)
    verification = inspect(made, check=True).verification
    assert verification is not None
    (problem,) = verification.problems
    assert kind in problem.kind

"""What the compress job refuses before it starts Ray, and the sample that it trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.rewrite import parts_of, sample_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.compress import compress_index
from diffretriever.schemas.compress import CompressJob
from diffretriever.schemas.retriever import Bm25Retriever, LibraryRetriever
from tests.index.compressed_cases import compressed, fill, manifest, stored_vectors


def refused(index: str, message: str, **changes: object) -> None:
    with pytest.raises(ValueError, match=message):
        compress_index(CompressJob.model_validate({"index": index, **changes}))


def test_what_cannot_be_compressed(tmp_path: Path) -> None:
    refused(str(tmp_path / "nothing"), r"no index at .*nothing")
    assert not (tmp_path / "nothing").exists()
    bm25 = PassageIndex.create(str(tmp_path / "bm25"), bm25_manifest(Bm25Retriever()))
    refused(bm25.uri, "holds no vectors")
    refused(fill(str(tmp_path / "empty")).uri, "holds no passages to train a codec on")
    retriever = LibraryRetriever.model_validate({"backbone": {"source": "x"}, "similarity": "dot"})
    lengths = PassageIndex.create(str(tmp_path / "dot"), manifest().model_copy(update={"retriever": retriever}))
    refused(lengths.uri, "whose lengths count")


def test_vectors_that_are_gone(tmp_path: Path) -> None:
    index = compressed(fill(str(tmp_path / "index"), 20), "product2")
    refused(index.uri, r"holds product2 codes .* into a new index to store it as product1", codec="product1")
    refused(index.uri, r"or with its vectors", keep_vectors=True)
    done = compress_index(CompressJob.model_validate({"index": index.uri, "codec": "product2"}))
    assert (done.written, done.passages, done.bytes_before) == (0, 20, done.bytes_after)


def test_a_job_that_is_writing_is_left_alone(tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), 20)
    with WriterLock(index.uri):
        refused(index.uri, r"another job .* is writing")


@pytest.mark.parametrize("codec", ["product3", "residual", "zstd"])
def test_a_codec_that_is_none_is_a_wrong_command_line(codec: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        CompressJob.from_command_line(["--index", "i", "--codec", codec])
    assert stopped.value.code == 2
    assert f"'{codec}' is not a codec: write product1, product2 or product4" in capsys.readouterr().err


def test_the_sample_is_of_the_index(tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), 500, 700)
    index.delete(["p3", "p600"])
    everything = stored_vectors(index)
    assert np.array_equal(sample_of(index, 10_000), everything)
    few = sample_of(index, 100)
    assert len(few) == 100
    rows = {vector.tobytes() for vector in everything}
    assert all(vector.tobytes() in rows for vector in few)
    assert sum(part.rows for part in parts_of(index)) == len(index) == 1198

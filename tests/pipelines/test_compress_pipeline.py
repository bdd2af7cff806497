"""The compress job: codes in the place of vectors, in one step, resumed where it was killed; what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from diffretriever.index import rewrite as compression
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines import compress
from diffretriever.pipelines.compress import compress_index
from diffretriever.schemas.compress import CompressJob
from diffretriever.schemas.retriever import Bm25Retriever, LibraryRetriever
from tests.index.compressed_cases import compressed, fill, manifest, stored_vectors


def refused(index: str, message: str, **changes: object) -> None:
    with pytest.raises(ValueError, match=message):
        compress_index(CompressJob.model_validate({"index": index, **changes}))


def test_an_index_without_vectors_to_compress_is_rejected(tmp_path: Path) -> None:
    refused(str(tmp_path / "nothing"), r"no index at .*nothing")
    assert not (tmp_path / "nothing").exists()
    bm25 = PassageIndex.create(str(tmp_path / "bm25"), bm25_manifest(Bm25Retriever()))
    refused(bm25.uri, "holds no vectors")
    refused(fill(str(tmp_path / "empty")).uri, "holds no passages to train a codec on")
    retriever = LibraryRetriever.model_validate({"backbone": {"source": "x"}, "similarity": "dot"})
    lengths = PassageIndex.create(str(tmp_path / "dot"), manifest().model_copy(update={"retriever": retriever}))
    refused(lengths.uri, "whose lengths count")


def test_a_compressed_index_is_not_compressed_again(tmp_path: Path) -> None:
    index = compressed(fill(str(tmp_path / "index"), 20), "product2")
    refused(index.uri, r"holds product2 codes .* into a new index to store it as product1", codec="product1")
    done = compress_index(CompressJob.model_validate({"index": index.uri, "codec": "product2"}))
    assert (done.written, done.passages, done.bytes_before) == (0, 20, done.bytes_after)


def test_an_index_that_another_job_writes_is_rejected(tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), 20)
    with WriterLock(index.uri):
        refused(index.uri, r"another job .* is writing")


class KilledError(Exception):
    """Where a process would have been killed."""


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_a_killed_compression_resumes(tmp_path: Path) -> None:
    """A driver that dies before the commit, then one that finds a part done and the file of another gone."""
    index = fill(str(tmp_path / "index"), 60, 60)
    job = CompressJob.model_validate({"index": index.uri, "codec": "product2"})
    before = stored_vectors(index)

    def dying(*_: object) -> None:
        raise KilledError

    # Parts of 25 passages: the workers are told, and read no sizes of their own.
    with patch.object(compression, "_PART_BYTES", 25 * compression._row_bytes(index.manifest)):
        with patch.object(compress, "replace_all", dying), pytest.raises(KilledError):
            compress_index(job)
        assert PassageIndex.open(index.uri).version == index.version, "nothing is to be seen of it"
        work = next((tmp_path / "index" / "compressing").iterdir())
        receipts = sorted(work.glob("*.json"))
        assert [file.stem for file in receipts] == ["0-0", "0-25", "0-50", "1-0", "1-25", "1-50"]
        receipts[1].unlink()
        lost = json.loads(receipts[4].read_text())[0]["files"][0]["path"]
        (tmp_path / "index" / "passages.lance" / "data" / lost).unlink()
        codec = (work / "codec.safetensors").read_bytes()
        summary = compress_index(job)
    assert (summary.passages, summary.written) == (120, 50)
    after = PassageIndex.open(index.uri)
    assert after.version == index.version + 1
    assert "reps" not in after.dataset.schema.names
    assert after.manifest.codec is not None
    assert after.manifest.fingerprint == index.manifest.fingerprint
    assert not (tmp_path / "index" / "compressing").exists()
    assert (tmp_path / "index" / "codecs" / f"{summary.digest}.safetensors").read_bytes() == codec
    assert summary.bytes_after < summary.bytes_before
    assert after.dataset.to_table(columns=["id"]) == index.dataset.to_table(columns=["id"]), "in the same order"

    assert np.array_equal(stored_vectors(index), before), "a reader of the old version keeps its vectors"
    again = compress_index(job)
    assert (again.written, PassageIndex.open(index.uri).version) == (0, after.version)
    with pytest.raises(ValueError, match=r"holds product2 codes and no vectors any more.*product1"):
        compress_index(CompressJob.model_validate({"index": index.uri, "codec": "product1"}))

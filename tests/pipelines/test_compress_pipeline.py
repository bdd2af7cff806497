"""The compress job on a local Ray: codes in the place of vectors, in one step, resumed where it was killed."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from diffretriever.index import rewrite as compression
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines import compress
from diffretriever.pipelines.compress import compress_index
from diffretriever.schemas.compress import CompressJob
from tests.index.compressed_cases import fill, stored_vectors

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


class KilledError(Exception):
    """Where a process would have been killed."""


def test_killed_and_run_again(tmp_path: Path) -> None:
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
    compressed = PassageIndex.open(index.uri)
    assert compressed.version == index.version + 1
    assert "reps" not in compressed.dataset.schema.names
    assert compressed.manifest.codec is not None
    assert compressed.manifest.fingerprint == index.manifest.fingerprint
    assert not (tmp_path / "index" / "compressing").exists()
    assert (tmp_path / "index" / "codecs" / f"{summary.digest}.safetensors").read_bytes() == codec
    assert summary.bytes_after < summary.bytes_before
    assert compressed.dataset.to_table(columns=["id"]) == index.dataset.to_table(columns=["id"]), "in the same order"

    assert np.array_equal(stored_vectors(index), before), "a reader of the old version keeps its vectors"
    again = compress_index(job)
    assert (again.written, PassageIndex.open(index.uri).version) == (0, compressed.version)
    with pytest.raises(ValueError, match=r"holds product2 codes and no vectors any more.*product1"):
        compress_index(CompressJob.model_validate({"index": index.uri, "codec": "product1"}))

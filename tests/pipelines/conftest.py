"""Jobs over a tiny random checkpoint, shared by the pipeline's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.schemas.encode import EncodeJob
from tests.pipelines.corpora import JobMaker


@pytest.fixture
def make_job(tmp_path: Path, checkpoint: Path) -> JobMaker:
    """Jobs with one encoder over the random checkpoint and small blocks."""

    def make(collection: Path, **changes: object) -> EncodeJob:
        values = {
            "collection": str(collection),
            "index": str(tmp_path / "index"),
            "retriever": "diffretriever-llada",
            "backbone": str(checkpoint),
            "encoders": 1,
            "rows_per_block": 16,
        }
        return EncodeJob.model_validate({**values, **changes})

    return make

"""A sweep of nested slots: one encoding for all K_p, which are as if encoded each by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encode import encode_collection
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import EncodeJob, EncodeSummary
from diffretriever.schemas.sweep import SweepJob
from diffretriever.studies.budgets import sweep
from diffretriever.studies.budgets.sweep import sweep_budgets
from diffretriever.vectors.representations import Representations
from tests.locations import local
from tests.studies.budgets.sweep_cases import make_job

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
NESTED = {"method": "masked", "prompt": {"variant": "one"}, "tail_length": 0, "nested_slots": True}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> SweepJob:
    folder = tmp_path_factory.mktemp("nested")
    retriever = folder / "nested.yaml"
    retriever.write_text(json.dumps(NESTED | {"backbone": {"source": str(checkpoint), "dtype": "float32"}}), "utf-8")
    plain = make_job(folder, checkpoint)
    changes = {"retriever": str(retriever), "backbone": None, "passage_budgets": (1, 2, 4), "query_budgets": (2,)}
    return plain.model_copy(update=changes | {"modes": ("dense", "sparse")})


def stored(place: Path) -> tuple[list[str], Representations]:
    """Ids and representations of an index, ids ascending."""
    index = PassageIndex.open(str(place))
    table = index.take(np.arange(len(index)), index.dataset.schema.names).sort_by("id")
    return table.column("id").to_pylist(), Representations.from_arrow(table)


def encoded_now(job: SweepJob) -> list[EncodeSummary]:
    """Run the sweep; return what encoded passages in it."""
    summaries: list[EncodeSummary] = []

    def noted(*args: object) -> None:
        summaries.append(encode_collection(*args))  # type: ignore[arg-type]

    with patch.object(sweep, "encode_collection", noted):
        sweep_budgets(job, "python jobs/sweep_budgets.py", print)
    return summaries


@pytest.fixture(scope="module")
def summaries(job: SweepJob, cluster: None) -> list[EncodeSummary]:
    return encoded_now(job)


def test_one_encoding_serves_all_budgets(job: SweepJob, summaries: list[EncodeSummary], tmp_path: Path) -> None:
    (summary,) = summaries
    assert (summary.encoded, summary.already_there, summary.rows) == (40, 0, 40)
    swept = {budget: stored(local(job.output) / "indexes" / f"p{budget}") for budget in job.passage_budgets}
    for budget, (ids, found) in swept.items():
        assert len(set(ids)) == len(ids) == 40
        assert np.diff(found.offsets).tolist() == [budget] * 40
    apart = tmp_path / "apart"
    encode_collection(
        EncodeJob(collection=job.collection, retriever=job.retriever, index=str(apart), budget=Budget(1, 2), encoders=1)
    )
    manifests = [PassageIndex.open(str(place)).manifest for place in (apart, job.output / "indexes" / "p2")]
    assert manifests[0].fingerprint == manifests[1].fingerprint
    ids, expected = stored(apart)
    assert ids == swept[2][0]
    found = swept[2][1]
    np.testing.assert_array_equal(found.impact_ids, expected.impact_ids)
    np.testing.assert_allclose(found.impact_weights, expected.impact_weights, atol=2e-3)
    np.testing.assert_allclose(np.float32(found.vectors_MH), np.float32(expected.vectors_MH), atol=2e-3)


@pytest.mark.usefixtures("summaries")
def test_what_one_index_lacks_is_encoded_once_more_for_all(job: SweepJob, tmp_path: Path) -> None:
    """As after a death between the commits of two indexes."""
    shutil.copytree(local(job.output), tmp_path / "swept")
    job = job.model_copy(update={"output": tmp_path / "swept"})
    places = {budget: job.output / "indexes" / f"p{budget}" for budget in job.passage_budgets}
    before = stored(local(places[4]))
    PassageIndex.open(str(places[1])).delete(["p3", "p17"])
    for place in places.values():
        (local(place) / "finished.json").unlink()
    (summary,) = encoded_now(job)
    assert (summary.encoded, summary.already_there, summary.replaced) == (2, 38, 0)
    for budget, place in places.items():
        ids, found = stored(local(place))
        assert len(ids) == len(set(ids)) == 40
        assert np.diff(found.offsets).tolist() == [budget] * 40
    again = stored(local(places[4]))
    assert again[0] == before[0]
    np.testing.assert_allclose(np.float32(again[1].vectors_MH), np.float32(before[1].vectors_MH), atol=2e-3)

"""`--protocol`: the retriever that a job runs, whatever else is replaced in it."""

from __future__ import annotations

from typing import Any

import pytest

from diffretriever.presets import load_retriever
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.settings import PresetListing
from diffretriever.schemas.sweep import SweepJob
from diffretriever.schemas.training import TrainJob
from diffretriever.studies.planning import retrievers
from diffretriever.studies.planning_config import PlanJob


def test_every_job_with_a_retriever_has_the_flag() -> None:
    for job in (EncodeJob, SweepJob, TrainJob, PlanJob):
        assert issubclass(job, PresetListing)
        assert "retriever" in job.model_fields


def test_a_protocol_composes_with_backbone_adapter_and_budget() -> None:
    parts: dict[str, Any] = {"backbone": "other/backbone", "budget": Budget(2, 3)}
    zero_shot: Any = load_retriever("diffretriever-dream", protocol="authors", **parts)
    assert (zero_shot.backbone.source, zero_shot.budget) == ("other/backbone", Budget(2, 3))
    assert (zero_shot.prompt.colon, zero_shot.sparse_topk, zero_shot.text.max_passage_tokens) == (True, 128, 256)
    tuned: Any = load_retriever("diffretriever-dream", protocol="authors", adapter="some/adapter", **parts)
    assert (tuned.sparse_topk, tuned.text.max_passage_tokens) == (256, 156), "an adapter makes it fine-tuned"


@pytest.mark.parametrize("protocol", ["authors", "paper"])
def test_plans_follow_the_protocol(protocol: Any) -> None:
    expected = load_retriever("promptreps-llama3", protocol=protocol)
    assert retrievers(PlanJob(passages=9, retriever="promptreps-llama3", protocol=protocol)) == [expected]
    assert load_retriever("promptreps-llama3") != load_retriever("promptreps-llama3", protocol="authors")

"""The packaged adapter: in half precision, and with all stages of its training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffretriever.backbones.source import EMBEDDED_ADAPTERS
from diffretriever.core.files import file_digest
from diffretriever.schemas.training import TrainingManifest


@pytest.mark.parametrize("folder", EMBEDDED_ADAPTERS.values(), ids=EMBEDDED_ADAPTERS)
def test_a_packaged_one_is_what_it_says(folder: Path) -> None:
    manifest = TrainingManifest.model_validate_json((folder / "training.json").read_text())
    assert manifest.adapter == file_digest(folder / "adapter_model.safetensors")
    assert manifest.slots == file_digest(folder / "slots.safetensors")
    stages = json.loads((folder / "provenance.json").read_text())["stages"]
    assert all(stage["commit"] and stage["training_data"] for stage in stages)
    last = TrainingManifest.model_validate(stages[-1]["training"])
    assert last.identity == manifest.identity
    curve = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    for number, stage in enumerate(stages, start=1):
        steps = [point["step"] for point in curve if point["stage"] == number and "loss" in point]
        assert steps[-1] == stage["training"]["step"] == stage["training"]["total_steps"]

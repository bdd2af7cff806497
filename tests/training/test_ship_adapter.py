"""The packaged adapter: in half precision, and with all stages of its training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffretriever.backbones.source import EMBEDDED_ADAPTERS
from diffretriever.files import file_digest
from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.schemas.training import TrainingManifest
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of
from tools.ship_adapter import ShipAdapter, main

SLOTS = {"slot_layers": 4}


def trained(retriever: BackboneRetriever, folder: Path) -> Path:
    """A run's folder as jobs/train.py leaves it."""
    session = session_of(retriever, quick_recipe(max_steps=2, **SLOTS))
    steps = run(session, 2)
    session.save_adapter(folder / "adapter")
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": m.step}) + "\n" for m in steps), "utf-8")
    return folder


def shipped(run: Path, output: Path) -> tuple[list[str], list[dict[str, int]]]:
    """Ship a run; return the commits of all stages and the curve."""
    main(ShipAdapter(run=run, commit=f"of {run.name}", training_data="made up", output=output))
    stages = json.loads((output / "provenance.json").read_text())["stages"]
    return [s["commit"] for s in stages], [
        json.loads(line) for line in (output / "curve.jsonl").read_text().splitlines()
    ]


def test_stages(folder_of: FolderOf, tmp_path: Path) -> None:
    retriever, package = config_of("masked-bert", folder_of), tmp_path / "package"
    first = trained(retriever, tmp_path / "first")
    assert shipped(first, package) == (["of first"], [{"stage": 1, "step": 1}, {"stage": 1, "step": 2}])
    halved, whole = (load_file(folder / "adapter_model.safetensors") for folder in (package, first / "adapter"))
    assert all(torch.equal(tensor, whole[name].half()) for name, tensor in halved.items())

    place = retriever.backbone.model_copy(update={"adapter": str(package)})
    second = trained(retriever.model_copy(update={"backbone": place}), tmp_path / "second")
    commits, curve = shipped(second, package)
    assert commits == ["of first", "of second"]
    assert [(point["stage"], point["step"]) for point in curve] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    with pytest.raises(ValueError, match=r"which is not what .* holds now"):
        shipped(second, package)
    assert shipped(first, package)[0] == ["of first"], "one that began anew has no earlier stages"


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

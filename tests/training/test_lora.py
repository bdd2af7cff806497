"""New adapters: matrices, seed, training, saving and loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft.tuners import lora
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffretriever.backbones.loader import load_backbone
from diffretriever.schemas.training import LORA_RANK, MANIFEST_FILE, TrainingManifest
from diffretriever.training.adapters import (
    adapter_tensors,
    attach_lora,
    check_trained,
    trainable_parameters,
)
from tests.backbones.helpers import outputs, pad, texts
from tests.training.trainer_cases import CONTRACT, FolderOf, config_of, quick_recipe, session_of

FAMILIES = ("dream", "llada", "qwen2", "llama3", "bert", "modernbert")
BATCH = pad(texts(5, 11, 8))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_adapter_has_the_right_matrices_and_no_effect(family: str, folder_of: FolderOf) -> None:
    backbone = load_backbone(folder_of(family), device="cpu")
    before = outputs(backbone, BATCH)
    attach_lora(backbone, quick_recipe())
    for actual, expected in zip(outputs(backbone, BATCH), before, strict=True):
        assert torch.equal(actual, expected), "B is zero at first"
    matrices = {name.partition(".lora_")[0] for name in trainable_parameters(backbone)}
    assert len(matrices) == 2 * {"bert": 6, "modernbert": 4}.get(family, 7)
    assert all("layer" in name for name in matrices)
    # A feed-forward matrix of 32 by 64 is 96 a rank, an attention matrix 64 but for grouped heads.
    attention = {"bert": 4 * 64, "llada": 4 * 64, "modernbert": 128 + 64}.get(family, 2 * 64 + 2 * 48)
    feed_forward = {"bert": 2 * 96, "modernbert": 160 + 96}.get(family, 3 * 96)
    count = sum(parameter.numel() for parameter in trainable_parameters(backbone).values())
    assert count == LORA_RANK * 2 * (attention + feed_forward)


def test_the_seed_determines_a_new_adapter(folder_of: FolderOf) -> None:
    adapters: list[dict[str, Tensor]] = []
    for seed in (42, 42, 43):
        backbone = load_backbone(folder_of("dream"), device="cpu")
        torch.rand(len(adapters))
        attach_lora(backbone, quick_recipe(seed=seed))
        adapters.append(adapter_tensors(backbone))
    first, same_seed, other_seed = adapters
    assert all(torch.equal(first[name], same_seed[name]) for name in first)
    assert any(not torch.equal(first[name], other_seed[name]) for name in first)


@pytest.mark.parametrize("case", CONTRACT)
def test_trained_saved_and_loaded(case: str, folder_of: FolderOf, tmp_path: Path) -> None:
    """Ten steps on one batch lower the loss and change only the adapter."""
    session = session_of(
        config_of(case, folder_of), quick_recipe(max_steps=10, queries_per_device=8, lora_dropout=0.0), 8
    )
    backbone = session.encoder.backbone
    before = {name: parameter.detach().clone() for name, parameter in backbone.model.named_parameters()}
    metrics = list(session.trainer.run())
    for name, parameter in backbone.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (".lora_" not in name), name
    first, last = (sum(m.loss for m in part) / 3 for part in (metrics[:3], metrics[-3:]))
    assert last < 0.9 * first, [m.loss for m in metrics]
    assert (metrics[0].sparse_loss > 0) == ("sparse" in session.encoder.config.modes)
    assert all(m.tokens_per_second > 0 and m.gradient_norm > 0 and m.utilisation > 0 for m in metrics)

    manifest = session.save_adapter(tmp_path / "adapter")
    expected = outputs(backbone, BATCH)
    folder = folder_of(case.split("-")[1])
    for merge in (False, True):
        loaded = load_backbone(folder, device="cpu", adapter=tmp_path / "adapter", merge_adapter=merge)
        for actual, trained in zip(outputs(loaded, BATCH), expected, strict=True):
            torch.testing.assert_close(actual, trained, atol=1e-4 if merge else 0, rtol=1e-4 if merge else 0)
    read = TrainingManifest.model_validate_json((tmp_path / "adapter" / MANIFEST_FILE).read_text())
    assert read == manifest
    assert read.step == read.total_steps == 10
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors").values()
    assert read.trainable == sum(t.numel() for t in tensors)
    targets = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)


def test_an_untrained_or_broken_adapter_is_refused(folder_of: FolderOf, tmp_path: Path) -> None:
    session = session_of(config_of("pooled-bert", folder_of), quick_recipe(max_steps=1))
    session.save_adapter(tmp_path / "start")
    session.trainer.step = 1
    with pytest.raises(ValueError, match="every B is zero after 1 steps"):
        session.save_adapter(tmp_path / "adapter")
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
    file = tmp_path / "start" / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[min(tensors)][0, 0] = torch.nan
    save_file(tensors, file)
    with pytest.raises(ValueError, match="not finite"):
        check_trained(tmp_path / "start", 0)


def test_products_are_in_bfloat16_over_bfloat16_weights(folder_of: FolderOf) -> None:
    actual, expected = (_states_and_gradients(folder_of("dream"), as_peft_does=each) for each in (False, True))
    assert actual.keys() == expected.keys()
    assert len(actual) == 1 + 2 * 14
    for name, tensor in actual.items():
        assert tensor.dtype == (torch.bfloat16 if name == "states" else torch.float32)
        likeness = torch.cosine_similarity(tensor.flatten().float(), expected[name].flatten().float(), dim=0)
        assert likeness > 0.998, name


def _states_and_gradients(folder: Path, *, as_peft_does: bool) -> dict[str, Tensor]:
    backbone = load_backbone(folder, device="cpu", dtype="bfloat16")
    attach_lora(backbone, quick_recipe())
    torch.manual_seed(0)
    parameters = trainable_parameters(backbone)
    for parameter in parameters.values():
        parameter.data.normal_(std=0.1)
    for layer in backbone.model.modules():
        if as_peft_does and isinstance(layer, lora.Linear):
            layer.__class__ = lora.Linear
    states = backbone.forward(BATCH.ids_BL, BATCH.mask_BL, BATCH.last_B1, torch.tensor([], dtype=torch.long)).hidden
    states.float().pow(3).sum().backward()
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    return {"states": states.detach(), **gradients}


def test_layers_share_their_compiled_graphs(folder_of: FolderOf) -> None:
    """Per-layer functions would compile one graph per layer."""
    backbone = load_backbone(folder_of("dream"), device="cpu", dtype="bfloat16", attention="packed")
    attach_lora(backbone, quick_recipe(gradient_checkpointing=False))
    graphs = []

    def counted(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    backbone.compile_layers(counted)
    with torch.no_grad():
        backbone.forward(BATCH.ids_BL, BATCH.mask_BL, BATCH.last_B1, torch.tensor([], dtype=torch.long))
    torch._dynamo.reset()
    assert len(graphs) <= 4, "7 with a function of each layer's own"

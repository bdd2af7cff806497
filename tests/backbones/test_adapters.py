"""LoRA adapters in the authors' format and as PEFT saves them, merged and kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.helpers import (
    PREFIX,
    BackboneOf,
    FolderOf,
    drop,
    edit_config,
    edit_tensors,
    merge_by_hand,
    outputs,
    pad,
    texts,
)

BATCH = pad(texts(5, 11, 8))
HEAD = "model.transformer.ff_out"


def load(folder: Path, adapter: Path | str | None = None, **options: Any) -> Backbone:
    return load_backbone(folder, device="cpu", adapter=adapter, **options)


@pytest.fixture
def changed(adapter_copy_of: FolderOf) -> Path:
    return adapter_copy_of("llada")


@pytest.mark.parametrize("name", ["dream", "llada", "bert", "modernbert"])
def test_an_adapter_equals_summed_weights(name: str, folder_of: FolderOf, adapter_of: FolderOf, tmp_path: Path) -> None:
    expected = outputs(load(merge_by_hand(folder_of(name), adapter_of(name), tmp_path / "sum")), BATCH)
    merged = outputs(load(folder_of(name), adapter_of(name)), BATCH)
    beside = outputs(load(folder_of(name), adapter_of(name), merge_adapter=False), BATCH)
    for ours, other, theirs in zip(merged, beside, expected, strict=True):
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(other, theirs, atol=1e-5, rtol=1e-5)
    without = outputs(load(folder_of(name)), BATCH)
    assert (without[0] - expected[0]).abs().max() > 0.1


@pytest.mark.parametrize("merge", [True, False])
@torch.inference_mode()
def test_the_head_changes_only_logits(merge: bool, folder_of: FolderOf, adapter_of: FolderOf, tmp_path: Path) -> None:
    place = folder_of("llada"), adapter_of("llada")
    whole = load(*place, merge_adapter=merge)
    dropped = load(*place, merge_adapter=merge, adapter_head="drop")
    headless = load(merge_by_hand(*place, tmp_path / "headless", without=HEAD))
    (hidden, logits), (kept_hidden, kept_logits) = outputs(whole, BATCH), outputs(dropped, BATCH)
    assert torch.equal(hidden, kept_hidden)
    assert (logits - kept_logits).abs().max() > 0.1
    torch.testing.assert_close(kept_logits, outputs(headless, BATCH)[1], atol=1e-5, rtol=1e-5)
    for backbone, full in ((whole, logits), (dropped, kept_logits)):
        chosen = backbone.forward(*BATCH, torch.tensor([3, 7])).logits
        torch.testing.assert_close(chosen[:, 0], full[:, -1][:, [3, 7]], atol=1e-5, rtol=1e-5)


def test_dropping_the_head_of_a_head_only_adapter_is_refused(changed: Path, folder_of: FolderOf) -> None:
    edit_tensors(changed, lambda tensors: {k: v for k, v in tensors.items() if HEAD in k})
    edit_config(changed, target_modules=[HEAD])
    with pytest.raises(ValueError, match="adapts only the output head"):
        load(folder_of("llada"), changed, adapter_head="drop")


@pytest.mark.parametrize("merge", [True, False])
@torch.inference_mode()
def test_a_tied_head_gets_weights_of_its_own(merge: bool, tmp_path: Path) -> None:
    folder = write_random_checkpoint("qwen2", tmp_path / "tied", layers=1)
    adapter = write_random_adapter(folder, tmp_path / "adapter")
    edit_config(folder, tie_word_embeddings=True)
    edit_tensors(folder, drop("lm_head.weight"))
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    low, high = torch.randn(16, 64) / 8, torch.randn(len(table), 16) / 16
    names = [f"{PREFIX}lm_head.lora_{half}.weight" for half in "AB"]
    edit_tensors(adapter, lambda tensors: tensors | dict(zip(names, (low, high), strict=True)))

    backbone = load(folder, adapter, merge_adapter=merge)
    assert torch.equal(backbone.model.get_input_embeddings().weight, table)
    dropped = load(folder, adapter, merge_adapter=merge, adapter_head="drop")
    assert torch.equal(outputs(dropped, BATCH)[0], outputs(backbone, BATCH)[0])
    for actual, head in ((dropped, table), (backbone, table + 4.0 * (high @ low))):
        output = actual.forward(*BATCH)
        torch.testing.assert_close(output.logits, output.hidden @ head.T, atol=1e-5, rtol=1e-5)


def test_the_digest_depends_on_the_adapter_not_on_its_path(
    changed: Path, folder_of: FolderOf, adapter_of: FolderOf, backbone_of: BackboneOf
) -> None:
    def digest(folder: Path, **options: Any) -> str:
        return load(folder_of("llada"), folder, **options).weights_digest

    known = digest(adapter_of("llada"))
    assert digest(changed) == digest(changed, merge_adapter=False) == known
    actual = [backbone_of("llada").weights_digest, known, digest(changed, adapter_head="drop")]
    edit_config(changed, lora_alpha=32)
    actual.append(digest(changed))
    edit_config(changed, lora_alpha=64)
    assert digest(changed) == known
    write_random_adapter(folder_of("llada"), changed, seed=1)
    actual.append(digest(changed))
    assert len(set(actual)) == len(actual) == 5


TRAINED: dict[str, dict[str, Any]] = {
    "llada": {"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "up_proj", "lm_head"], "use_rslora": True},
    "qwen2": {"r": 4, "lora_alpha": 4, "lora_dropout": 0.5, "target_modules": "all-linear"},
    "llama3": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj"], "layers_to_transform": [1]},
    "modernbert": {"r": 4, "lora_alpha": 8, "target_modules": ["Wqkv", "Wo", "decoder"]},
}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT's own use
@pytest.mark.parametrize("name", list(TRAINED))
def test_adapters_saved_by_peft_over_our_backbones(name: str, folder_of: FolderOf, tmp_path: Path) -> None:
    trained = load_backbone(folder_of(name), device="cpu")
    # It takes seconds to load, and every process of the tests reads this file.
    import peft

    config = peft.LoraConfig(**TRAINED[name], init_lora_weights="gaussian")
    model = peft.get_peft_model(trained.model, config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 4
    model.eval().save_pretrained(tmp_path, save_embedding_layers=False)
    expected = outputs(trained, BATCH)
    for merge in (True, False):
        actual = outputs(load(folder_of(name), tmp_path, merge_adapter=merge), BATCH)
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "respell",
    [
        lambda key: key.replace(".weight", ".default.weight"),
        lambda key: key.removeprefix(PREFIX),
        lambda key: key.replace("model.model.model.", "model.model."),
    ],
    ids=["adapter's name", "no prefix", "model without a head"],
)
def test_other_spellings_of_the_keys(respell: Any, folder_of: FolderOf, tmp_path: Path) -> None:
    known, respelled = (write_random_adapter(folder_of("dream"), tmp_path / name) for name in ("known", "respelled"))
    edit_tensors(respelled, lambda tensors: {respell(key): value for key, value in tensors.items()})
    actual, expected = load(folder_of("dream"), respelled), load(folder_of("dream"), known)
    assert torch.equal(outputs(actual, BATCH)[1], outputs(expected, BATCH)[1])
    assert actual.weights_digest == expected.weights_digest

"""LoRA adapters: the authors' format merged and beside the weights, against arithmetic by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffretriever.backbones import Backbone, load_backbone
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.adapter_cases import (
    PREFIX,
    edit_adapter_config,
    edit_tensors,
    merge_by_hand,
    outputs,
)
from tests.backbones.helpers import BackboneOf, FolderOf, edit_config, pad, texts

BATCH = pad(texts(5, 11, 8))
HEAD = "model.transformer.ff_out"


def load(folder: Path, adapter: Path | str | None = None, **options: Any) -> Backbone:
    return load_backbone(folder, device="cpu", adapter=adapter, **options)


@pytest.fixture
def changed(adapter_of: FolderOf, tmp_path: Path) -> Path:
    """A copy of LLaDA's adapter, to be changed."""
    return Path(shutil.copytree(adapter_of("llada"), tmp_path / "changed"))


@pytest.mark.parametrize("name", ["dream", "llada", "bert", "modernbert"])
def test_it_computes_what_the_sum_of_weights_computes(
    name: str, folder_of: FolderOf, adapter_of: FolderOf, tmp_path: Path
) -> None:
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
def test_the_head_touches_logits_only(merge: bool, folder_of: FolderOf, adapter_of: FolderOf, tmp_path: Path) -> None:
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


def test_nothing_is_left_of_an_adapter_on_the_head_alone(changed: Path, folder_of: FolderOf) -> None:
    edit_tensors(changed, lambda tensors: {k: v for k, v in tensors.items() if HEAD in k})
    edit_adapter_config(changed, target_modules=[HEAD])
    with pytest.raises(ValueError, match="all of it is on the output head"):
        load(folder_of("llada"), changed, adapter_head="drop")


@pytest.mark.parametrize("merge", [True, False])
@torch.inference_mode()
def test_a_tied_head_gets_weights_of_its_own(merge: bool, tmp_path: Path) -> None:
    folder = write_random_checkpoint("qwen2", tmp_path / "tied", layers=1)
    adapter = write_random_adapter(folder, tmp_path / "adapter")
    edit_config(folder, tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    table = weights["model.embed_tokens.weight"].clone()
    edit = {k: v.clone() for k, v in weights.items() if k != "lm_head.weight"}
    save_file(edit, folder / "model.safetensors", metadata={"format": "pt"})
    low, high = torch.randn(16, 64) / 8, torch.randn(len(table), 16) / 16
    names = [f"{PREFIX}lm_head.lora_{half}.weight" for half in "AB"]
    edit_tensors(adapter, lambda tensors: tensors | dict(zip(names, (low, high), strict=True)))

    backbone = load(folder, adapter, merge_adapter=merge)
    assert torch.equal(backbone.model.get_input_embeddings().weight, table)
    dropped = load(folder, adapter, merge_adapter=merge, adapter_head="drop")
    assert torch.equal(outputs(dropped, BATCH)[0], outputs(backbone, BATCH)[0])
    for found, head in ((dropped, table), (backbone, table + 4.0 * (high @ low))):
        output = found.forward(*BATCH)
        torch.testing.assert_close(output.logits, output.hidden @ head.T, atol=1e-5, rtol=1e-5)


def test_the_digest_follows_the_adapter_not_its_place(
    changed: Path, folder_of: FolderOf, adapter_of: FolderOf, backbone_of: BackboneOf
) -> None:
    def digest(folder: Path, **options: Any) -> str:
        return load(folder_of("llada"), folder, **options).weights_digest

    known = digest(adapter_of("llada"))
    assert digest(changed) == digest(changed, merge_adapter=False) == known
    found = [backbone_of("llada").weights_digest, known, digest(changed, adapter_head="drop")]
    edit_adapter_config(changed, lora_alpha=32)
    found.append(digest(changed))
    edit_adapter_config(changed, lora_alpha=64, use_rslora=True)
    found.append(digest(changed))
    edit_adapter_config(changed, use_rslora=False)
    assert digest(changed) == known
    write_random_adapter(folder_of("llada"), changed, seed=1)
    found.append(digest(changed))
    assert len(set(found)) == len(found) == 6

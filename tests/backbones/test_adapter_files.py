"""Invalid adapter files are refused with the file and the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffretriever.backbones.loader import load_backbone
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.helpers import PREFIX, FolderOf, drop, edit_config, edit_tensors

Q = "model.layers.0.self_attn.q_proj"
A, B = (f"{PREFIX}{Q}.lora_{half}.weight" for half in "AB")


@pytest.fixture
def changed(adapter_copy_of: FolderOf) -> Path:
    return adapter_copy_of("dream")


def refused(folder: Path, adapter: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_backbone(folder, device="cpu", adapter=adapter)


BAD_TENSORS: dict[str, tuple[Callable[[Tensor], dict[str, Tensor]], str]] = {
    "unknown module": (lambda t: {A.replace("layers.0", "layers.7"): t}, "layers.7.*does not belong to a linear layer"),
    "embeddings": (lambda t: {f"{PREFIX}model.embed_tokens.lora_embedding_A": t}, "is not part of a LoRA adapter"),
    "full weights": (lambda t: {"model.norm.weight": t[0]}, "'model.norm.weight' is not part of a LoRA"),
    "rank": (lambda t: {A: t[:8]}, r"has shape \[8, 64\].*require \[16, 64\]"),
    "width": (lambda t: {A: t[:, :60]}, r"has shape \[16, 60\].*require \[16, 64\]"),
    "nan": (lambda t: {A: t * torch.nan}, "values that are not finite"),
}


@pytest.mark.parametrize("case", list(BAD_TENSORS))
def test_a_tensor_that_does_not_fit_the_backbone_is_refused(case: str, changed: Path, folder_of: FolderOf) -> None:
    make, message = BAD_TENSORS[case]
    edit_tensors(changed, lambda tensors: tensors | make(tensors[A]))
    refused(folder_of("dream"), changed, rf"adapter_model\.safetensors: .*{message}")


def test_lora_a_without_lora_b_is_refused(changed: Path, folder_of: FolderOf) -> None:
    edit_tensors(changed, drop(A))
    refused(folder_of("dream"), changed, f"'{B}' lacks its counterpart")


def test_a_targeted_module_without_tensors(changed: Path, adapter_copy_of: FolderOf, folder_of: FolderOf) -> None:
    edit_tensors(changed, drop(A, B))
    refused(folder_of("dream"), changed, f"config targets '{Q}', but the file has no tensors for it")
    edit_config(changed, layers_to_transform=[1])
    load_backbone(folder_of("dream"), device="cpu", adapter=changed)
    headless = adapter_copy_of("llada")
    edit_tensors(headless, lambda tensors: {k: v for k, v in tensors.items() if "transformer.ff_out" not in k})
    load_backbone(folder_of("llada"), device="cpu", adapter=headless)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"layers": 3}, "layers.2.* but the file has no tensors for it"), ({"hidden_size": 32}, "use an adapter for")],
)
def test_an_adapter_for_another_size(sizes: dict[str, Any], message: str, adapter_of: FolderOf, tmp_path: Path) -> None:
    refused(write_random_checkpoint("dream", tmp_path, tokenizer=False, **sizes), adapter_of("dream"), message)


def test_an_adapter_for_another_family(adapter_of: FolderOf, folder_of: FolderOf) -> None:
    refused(folder_of("dream"), adapter_of("llada"), r"model\.transformer\..* does not belong to a linear layer")


@pytest.mark.parametrize(
    "changes",
    [
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "pissa"},
        {"peft_type": "IA3"},
        {"r": ...},
        {"lora_alpha": 0},
        {"new_option": 3},
    ],
)
def test_an_unsupported_adapter_field_is_refused(changes: dict[str, Any], changed: Path, folder_of: FolderOf) -> None:
    edit_config(changed, **changes)
    refused(folder_of("dream"), changed, rf"adapter_config\.json: .*field '{next(iter(changes))}'")


def test_folders_without_an_adapter_are_refused(changed: Path, folder_of: FolderOf, tmp_path: Path) -> None:
    backbone = folder_of("dream")
    refused(backbone, backbone, r"it has no adapter_config\.json\. Is it a backbone")
    edit_tensors(changed, lambda _: {})
    refused(backbone, changed, r"adapter_model\.safetensors has no tensors")
    (changed / "adapter_model.safetensors").write_bytes(b"short")
    refused(backbone, changed, "not a whole safetensors file")
    (changed / "adapter_model.safetensors").rename(changed / "adapter_model.bin")
    refused(backbone, changed, "of adapters only safetensors are read")
    refused(backbone, tmp_path / "nothing", "adapter folder '.*nothing' does not exist")
    with pytest.raises(ValueError, match="is an adapter, not a backbone"):
        load_backbone(changed, device="cpu")


def test_a_revision_without_an_adapter(folder_of: FolderOf) -> None:
    with pytest.raises(ValueError, match="adapter_revision 'main' has no meaning without an adapter"):
        load_backbone(folder_of("dream"), device="cpu", adapter_revision="main")

"""LoRA adapters as PEFT saves and trains them: over our own backbones, in other spellings, beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diffretriever.backbones import Backbone, load_backbone
from diffretriever.testing.adapters import write_random_adapter
from tests.backbones.adapter_cases import PREFIX, edit_tensors, outputs
from tests.backbones.helpers import FolderOf, pad, texts

BATCH = pad(texts(5, 11, 8))


def load(folder: Path, adapter: Path, **options: Any) -> Backbone:
    return load_backbone(folder, device="cpu", adapter=adapter, **options)


TRAINED: dict[str, dict[str, Any]] = {
    "llada": {"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "up_proj", "lm_head"], "use_rslora": True},
    "qwen2": {
        "r": 4,
        "lora_alpha": 4,
        "lora_dropout": 0.5,
        "target_modules": "all-linear",
    },
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
        for ours, theirs in zip(
            outputs(load(folder_of(name), tmp_path, merge_adapter=merge), BATCH), expected, strict=True
        ):
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


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
    found, expected = load(folder_of("dream"), respelled), load(folder_of("dream"), known)
    assert torch.equal(outputs(found, BATCH)[1], outputs(expected, BATCH)[1])
    assert found.weights_digest == expected.weights_digest

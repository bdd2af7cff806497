"""Packed texts have the states and gradients of padded ones.

Legend: B texts, L padded length, P positions read, H hidden size, T tokens of the row, N attention heads, G heads of
keys and values, D size of a head, M attended tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from diffretriever.backbones import packed
from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.backbones.packed import AttentionSpan, PackedLayout, TextBounds, packed_attention
from tests.backbones.helpers import BackboneOf, FolderOf, pad, texts

TOLERANCE = 2e-5
BIDIRECTIONAL = ("dream", "llada", "bert", "modernbert")
CPU = torch.device("cpu")


class Sample(NamedTuple):
    """Texts of several lengths, some of them longer than ModernBERT's window, all columns read."""

    ids_BL: Tensor
    mask_BL: Tensor
    position_ids_BL: Tensor
    slots_BL: Tensor

    def run(self, backbone: Backbone, **given: Any) -> Tensor:
        """Hidden states of the tokens [T, H], text after text."""
        columns_BL = torch.arange(self.ids_BL.shape[1]).expand(self.ids_BL.shape)
        none = torch.zeros(0, dtype=torch.long)
        return backbone.forward(self.ids_BL, self.mask_BL, columns_BL, none, **given).hidden[self.mask_BL.bool()]


def sample(side: str = "right") -> Sample:
    """Each text's slots are before its last two tokens."""
    lengths, slots_B1 = (33, 4, 12, 12, 40), torch.tensor([5, 2, 0, 3, 1])[:, None]
    ids_BL, mask_BL, _ = pad(texts(*lengths), side=side)
    index_BL = mask_BL.cumsum(1) - 1
    first_B1 = torch.tensor(lengths)[:, None] - 2 - slots_B1
    is_slot_BL = mask_BL.bool() & (index_BL >= first_B1) & (index_BL < first_B1 + slots_B1)
    slots_BL = torch.where(is_slot_BL, index_BL - first_B1, -1)
    natural_BL = (mask_BL.bool() & ~is_slot_BL).cumsum(1) - 1
    position_ids_BL = torch.where(is_slot_BL, 500 - 16 * slots_BL, natural_BL).clamp(min=0)
    return Sample(ids_BL, mask_BL, position_ids_BL, slots_BL)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", BIDIRECTIONAL)
@torch.inference_mode()
def test_packed_states_equal_padded(family: str, side: str, backbone_of: BackboneOf, packed_of: BackboneOf) -> None:
    given = sample(side)
    options = {"slots": given.slots_BL, "position_ids": given.position_ids_BL, "nested": True}
    expected_TH = given.run(backbone_of(family), **options)
    torch.testing.assert_close(given.run(packed_of(family), **options), expected_TH, atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def test_nan_stays_within_its_text(family: str, folder_of: FolderOf) -> None:
    backbone = load_backbone(folder_of(family), device="cpu", attention="packed")
    ids_BL, mask_BL, _ = pad([torch.tensor([7, 9, 7]), torch.tensor([7]), torch.tensor([7, 7])])
    backbone.model.get_input_embeddings().weight[9] = torch.nan
    everywhere = torch.arange(3).expand(3, 3)
    hidden_BLH = backbone.forward(ids_BL, mask_BL, everywhere, torch.zeros(0, dtype=torch.long)).hidden
    assert hidden_BLH[0].isnan().any()
    assert hidden_BLH[1:].isfinite().all()


@pytest.mark.parametrize("nested", [False, True])
def test_gradients_equal_padded_ones(family: str, nested: bool, backbone_of: BackboneOf, packed_of: BackboneOf) -> None:
    padded, row = backbone_of(family), packed_of(family)
    if nested and padded.is_causal:
        pytest.skip("has no nested slots")
    given = sample()
    for backbone in (padded, row):
        given.run(backbone, slots=given.slots_BL, nested=nested).square().sum().backward()
    ours, theirs = dict(row.model.named_parameters()), dict(padded.model.named_parameters())
    gradients = {name: (ours[name].grad, theirs[name].grad) for name in ours}
    for backbone in (padded, row):
        backbone.model.zero_grad()
    assert any(actual is not None for actual, _ in gradients.values())
    for actual, expected in gradients.values():
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)


def naive(
    query: Tensor, key: Tensor, value: Tensor, *layout: Any, window_size: tuple[int, int], **options: Any
) -> Tensor:
    """torch's documented kernel, one text at a time: queries are aligned to the end of the keys."""
    offsets_q, offsets_k, most_q, most_k = layout
    assert offsets_q.dtype == offsets_k.dtype == torch.int32
    assert int(offsets_q.diff().max()) <= most_q
    assert int(offsets_k.diff().max()) <= most_k
    sizes = offsets_q.diff().tolist(), offsets_k.diff().tolist()
    texts = zip(query.split(sizes[0]), key.split(sizes[1]), value.split(sizes[1]), strict=True)
    actual = []
    for heads in texts:
        queries, keys = len(heads[0]), len(heads[1])
        ahead = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
        before, after = (keys if size < 0 else size for size in window_size)
        mask = (ahead >= -before) & (ahead <= after)
        query_NQD, key_GKD, value_GKD = (each.transpose(0, 1) for each in heads)
        attended = scaled_dot_product_attention(query_NQD, key_GKD, value_GKD, attn_mask=mask, **options)
        actual.append(attended.transpose(0, 1))
    return torch.cat(actual)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (5, 5)])
@torch.inference_mode()
def test_attention_in_bfloat16(window: tuple[int, int]) -> None:
    """On CPUs with bfloat16, long texts use matrix products."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([90, 90, 71, 3])
    query_TND, key_TND, value_TND = torch.randn(3, int(lengths.sum()), 4, 8, generator=generator).bfloat16()
    bounds = TextBounds.of(lengths, CPU)
    span = AttentionSpan(slice(0, len(query_TND)), bounds, bounds, None, window)
    heads = (each.transpose(0, 1)[None] for each in (query_TND, key_TND, value_TND))
    actual = packed_attention(None, *heads, None, packed_layout=PackedLayout((span,)))[0][0]
    layout = (bounds.offsets_E, bounds.offsets_E, bounds.longest, bounds.longest)
    expected = naive(query_TND.float(), key_TND.float(), value_TND.float(), *layout, window_size=window)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("nested", [False, True])
@torch.inference_mode()
def test_the_varlen_kernel_gets_the_right_spans(
    family: str, nested: bool, backbone_of: BackboneOf, packed_of: BackboneOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel runs only on GPUs; `naive` replaces it."""
    backbone = packed_of(family)
    if nested and (backbone.is_causal or backbone.window):
        pytest.skip("has no nested slots, or computes them with pads")
    calls: list[int] = []

    def kernel(*tensors: Any, **options: Any) -> Tensor:
        calls.append(1)
        return naive(*tensors, **options)

    monkeypatch.setattr(packed, "attention_kernel", lambda *_: "varlen")
    monkeypatch.setattr(packed, "varlen_attn", kernel)
    given = sample()
    options = {"slots": given.slots_BL, "position_ids": given.position_ids_BL, "nested": nested}
    found_TH = given.run(backbone, **options)
    torch.testing.assert_close(found_TH, given.run(backbone_of(family), **options), atol=TOLERANCE, rtol=0)
    assert len(calls) == (1 + nested) * backbone.model.config.num_hidden_layers


def test_dropout_does_not_use_the_varlen_kernel(packed_of: BackboneOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "attention_kernel", lambda *_: "varlen")
    monkeypatch.setattr(packed, "varlen_attn", lambda *_, **__: pytest.fail("would drop nothing"))
    backbone, given = packed_of("bert"), sample()
    backbone.model.train()
    first, second = (given.run(backbone) for _ in range(2))
    backbone.model.eval()
    assert first.isfinite().all()
    assert not torch.equal(first, second)

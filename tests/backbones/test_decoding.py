"""Decoding with a cache and a shared prefix equals whole texts without a cache.

Shapes: B texts, L length, P prefix length, H hidden size, S steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.decoding import Decoding, compute_prefix, start_decoding
from tests.backbones.helpers import BackboneOf, pad, texts

CAUSAL = ("qwen2", "llama3")
TOLERANCE = 1e-5


@pytest.fixture(params=["padded", "packed"])
def backbone(request: pytest.FixtureRequest, family: str, backbone_of: BackboneOf, packed_of: BackboneOf) -> Backbone:
    return packed_of(family) if request.param == "packed" else backbone_of(family)


@pytest.fixture(params=CAUSAL)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def plain_steps(backbone: Backbone, ids_L: Tensor, steps: int) -> tuple[Tensor, list[int]]:
    """States [S, H] at the last token and after each decoded one, and the tokens predicted there."""
    states, tokens = [], []
    for _ in range(steps):
        states.append(backbone.model.base_model(input_ids=ids_L[None], use_cache=False).last_hidden_state[0, -1])
        tokens.append(int(backbone.model(input_ids=ids_L[None], use_cache=False).logits[0, -1].argmax()))
        ids_L = torch.cat([ids_L, torch.tensor(tokens[-1:])])
    return torch.stack(states), tokens


def start(backbone: Backbone, prefix_P: Tensor, rows: Sequence[Tensor]) -> Decoding:
    batch = pad(list(rows))
    return start_decoding(backbone, compute_prefix(backbone, prefix_P), batch.ids_BL, batch.mask_BL)


def decode(decoding: Decoding, steps: int) -> tuple[Tensor, Tensor]:
    """States [B, S, H] and the tokens predicted there, [B, S]."""
    states, tokens = [decoding.hidden_BH], [decoding.next_tokens()]
    for _ in range(steps - 1):
        states.append(decoding.feed(tokens[-1]))
        tokens.append(decoding.next_tokens())
    return torch.stack(states, dim=1), torch.stack(tokens, dim=1)


@pytest.mark.parametrize("prefix_length", [0, 1, 9])
@torch.inference_mode()
def test_every_step_equals_the_text_alone_without_a_cache(
    backbone: Backbone, family: str, backbone_of: BackboneOf, prefix_length: int
) -> None:
    (prefix_P,) = texts(prefix_length, seed=3)
    rows = texts(5, 1, 17)
    states_BSH, tokens_BS = decode(start(backbone, prefix_P, rows), 6)
    for row, ids_L in enumerate(rows):
        expected_SH, expected_S = plain_steps(backbone_of(family), torch.cat([prefix_P, ids_L]), 6)
        torch.testing.assert_close(states_BSH[row], expected_SH, atol=TOLERANCE, rtol=0)
        assert tokens_BS[row].tolist() == expected_S


@torch.inference_mode()
def test_rows_that_leave_change_nothing_for_the_others(backbone: Backbone) -> None:
    prefix_P, *rows = texts(7, 4, 11, 6, 2)
    whole_BSH, tokens_BS = decode(start(backbone, prefix_P, rows), 5)
    decoding = start(backbone, prefix_P, rows)
    decoding.feed(tokens_BS[:, 0])
    decoding.keep(torch.tensor([3, 0, 2]))
    torch.testing.assert_close(decoding.hidden_BH, whole_BSH[[3, 0, 2], 1], atol=TOLERANCE, rtol=0)
    found = decoding.feed(tokens_BS[[3, 0, 2], 1])
    torch.testing.assert_close(found, whole_BSH[[3, 0, 2], 2], atol=TOLERANCE, rtol=0)
    decoding.keep(torch.tensor([2]))
    assert decoding.next_tokens().tolist() == tokens_BS[[2], 2].tolist()
    assert decoding.feed(tokens_BS[[2], 2]).shape == (1, backbone.hidden_size)
    torch.testing.assert_close(decoding.hidden_BH, whole_BSH[[2], 3], atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def test_a_prefix_serves_many_batches(backbone: Backbone) -> None:
    prefix_P, first, second = texts(7, 4, 11)
    prefix = compute_prefix(backbone, prefix_P)
    batches = [pad([row]) for row in (first, second, first)]
    results = [decode(start_decoding(backbone, prefix, batch.ids_BL, batch.mask_BL), 3)[0] for batch in batches]
    assert torch.equal(results[0], results[2])


@torch.inference_mode()
def test_the_models_length_is_not_exceeded(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "max_length", 14)
    prefix_P, short_L, long_L = texts(4, 3, 11)
    with pytest.raises(ValueError, match="a row has 15 tokens; this backbone takes 14"):
        start(backbone, prefix_P, [short_L, long_L])
    decoding = start(backbone, prefix_P, [long_L[:10]])
    with pytest.raises(ValueError, match="a row has 15 tokens"):
        decoding.feed(decoding.next_tokens())

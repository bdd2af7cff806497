"""Slots from the first stop token on are left out: the output head is bent so that chosen slots predict one.

The head does not reach the hidden states, so that in one pass the vectors of the kept slots are known exactly.
Legend: H hidden size, M slots of all texts, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.budget import Budget
from tests.encoders.encoder_cases import Make

TEXTS = ("honey bees store water", "copper river", "winter and summer", "a passage")
TEXT_BUDGETS = [4, 4, 2, 1]
SWITCHES = ("none", "special", "turn-end", "quote")


def varied(encoder: MaskedEncoder, stop: str) -> MaskedEncoder:
    """The same model with another switch."""
    config = encoder.config.model_copy(update={"stop_truncation": stop})
    return MaskedEncoder(config, encoder.backbone, encoder.preparer)


def states_of(encoder: MaskedEncoder) -> torch.Tensor:
    """Hidden states [M, H] at all slots of `TEXTS`, in one pass."""
    states = []
    for text, slots in zip(TEXTS, TEXT_BUDGETS, strict=True):
        (prepared,) = encoder.preparer.prepare_queries([text], [slots])
        row = prepared.input_ids.tolist()
        at = [place for place, token in enumerate(row) if token == encoder.backbone.vocabulary.mask_token_id]
        with torch.inference_mode():
            output = encoder.backbone.forward(torch.tensor([row]), torch.ones(1, len(row)).long(), torch.tensor([at]))
        states.append(output.hidden[0])
    return torch.cat(states)


def predict_at(encoder: MaskedEncoder, token: str, slots: list[tuple[int, int]]) -> None:
    """Bend the head: of all slots of `TEXTS` only `slots`, as (text, slot), predict `token`."""
    states_MH = states_of(encoder)
    wanted_M = torch.full((len(states_MH),), -100.0)
    for text, slot in slots:
        wanted_M[sum(TEXT_BUDGETS[:text]) + slot] = 100
    row_H = torch.linalg.lstsq(states_MH.double(), wanted_M.double()).solution.float()
    head = encoder.backbone.output_projection
    assert isinstance(head, torch.nn.Linear)
    head_VH = head.weight
    token_id = encoder.backbone.vocabulary.tokenizer.convert_tokens_to_ids(token)
    with torch.no_grad():
        head_VH[token_id] = row_H
    predicted_M = (states_MH @ head_VH.T).argmax(-1)
    torch.testing.assert_close(predicted_M == token_id, wanted_M > 0)


@pytest.mark.parametrize(
    ("family", "token", "first"),
    [
        ("dream", "<|endoftext|>", "special"),
        ("dream", "<|mask|>", None),
        ("llada", "<|startoftext|>", "special"),
        ("llada", "<|eot_id|>", "turn-end"),
        ("llada", '"', "quote"),
        ("llada", 'Ġ"', None),
    ],
)
def test_each_switch_stops_at_the_tokens_of_those_before_it(
    family: str, token: str, first: str | None, make_masked: Make[MaskedEncoder]
) -> None:
    """`first` is the first switch that stops at the token."""
    encoder = make_masked(family, budget=Budget(4, 4))
    predict_at(encoder, token, [(0, 2), (0, 3), (1, 1), (2, 1)])
    whole = varied(encoder, "none").encode_queries(TEXTS, TEXT_BUDGETS)
    for switch in SWITCHES:
        stops = first is not None and SWITCHES.index(switch) >= SWITCHES.index(first)
        kept = [2, 1, 1, 1] if stops else TEXT_BUDGETS
        found = varied(encoder, switch).encode_queries(TEXTS, TEXT_BUDGETS)
        assert np.diff(found.offsets).tolist() == kept
        rows = [row for start, count in zip(whole.offsets, kept, strict=False) for row in range(start, start + count)]
        np.testing.assert_allclose(np.float32(found.vectors_MH), np.float32(whole.vectors_MH[rows]), atol=1e-3)

"""Slots from the first stop token on are left out: the output head is bent so that chosen slots predict one.

The head does not reach the hidden states, so that in one pass the vectors of the kept slots are known exactly.
Legend: K slots, H hidden size, M slots of all texts, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.representations import Representations
from diffretriever.schemas.budget import Budget
from tests.encoders.encoder_cases import Make, assert_close

TEXTS = ("honey bees store water", "copper river", "winter and summer", "a passage")
TEXT_BUDGETS = [4, 4, 2, 1]
SWITCHES = ("none", "special", "turn-end", "quote")
STOPS = {
    "dream": {"<|endoftext|>": "special", "<|im_end|>": "turn-end", '"': "quote", 'Ġ"': None, "<|mask|>": None},
    "llada": {
        "<|startoftext|>": "special",
        "<|endoftext|>": "special",
        "<|eot_id|>": "turn-end",
        '"': "quote",
        "<|start_header_id|>": None,
        'Ġ"': None,
        "<|mdm_mask|>": None,
    },
}
"""Token → the first switch that stops at it."""
CASES = [(family, token) for family, tokens in STOPS.items() for token in tokens]


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


def head_of(encoder: MaskedEncoder) -> torch.Tensor:
    head = encoder.backbone.output_projection
    assert isinstance(head, torch.nn.Linear)
    return head.weight


def predict_at(encoder: MaskedEncoder, token: str, slots: list[tuple[int, int]]) -> None:
    """Bend the head: of all slots of `TEXTS` only `slots`, as (text, slot), predict `token`."""
    states_MH = states_of(encoder)
    wanted_M = torch.full((len(states_MH),), -100.0)
    for text, slot in slots:
        wanted_M[sum(TEXT_BUDGETS[:text]) + slot] = 100
    row_H = torch.linalg.lstsq(states_MH.double(), wanted_M.double()).solution.float()
    head_VH = head_of(encoder)
    token_id = encoder.backbone.vocabulary.tokenizer.convert_tokens_to_ids(token)
    with torch.no_grad():
        head_VH[token_id] = row_H
    predicted_M = (states_MH @ head_VH.T).argmax(-1)
    torch.testing.assert_close(predicted_M == token_id, wanted_M > 0)


def expected(encoder: MaskedEncoder, kept: list[int]) -> Representations:
    """What one pass without truncation gives, reduced to the first `kept` slots of each text."""
    whole = varied(encoder, "none").encode_queries(TEXTS, TEXT_BUDGETS)
    rows = [row for start, count in zip(whole.offsets, kept, strict=False) for row in range(start, start + count)]
    ids, weights = pooled_by_hand(encoder, kept)
    return Representations(
        vectors_MH=whole.vectors_MH[rows],
        offsets=np.cumsum([0, *kept]),
        slot_tokens=whole.slot_tokens[rows],
        impact_ids=np.array([i for own in ids for i in own], np.int32),
        impact_weights=np.array([w for own in weights for w in own], np.float32),
        impact_offsets=np.cumsum([0, *(len(own) for own in ids)]),
        n_tokens=whole.n_tokens,
    )


def pooled_by_hand(encoder: MaskedEncoder, kept: list[int]) -> tuple[list[list[int]], list[list[float]]]:
    """Impacts of the first `kept` slots of each text."""
    logits_MV = (states_of(encoder) @ head_of(encoder).T).detach()
    ids: list[list[int]] = []
    weights: list[list[float]] = []
    for text, start, count in zip(TEXTS, np.cumsum([0, *TEXT_BUDGETS]), kept, strict=False):
        (prepared,) = encoder.preparer.prepare_queries([text])
        weights_V = torch.log1p(torch.relu(logits_MV[start : start + count].amax(0)))
        ids.append([i for i in prepared.content_ids.tolist() if weights_V[i] > 0])
        weights.append(weights_V[ids[-1]].tolist())
    return ids, weights


@pytest.mark.parametrize(("family", "token"), CASES)
def test_what_each_switch_stops_at(family: str, token: str, make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked(family, budget=Budget(4, 4))
    predict_at(encoder, token, [(0, 2), (0, 3), (1, 1), (2, 1)])
    first = STOPS[family][token]
    for switch in SWITCHES:
        stops = first is not None and SWITCHES.index(switch) >= SWITCHES.index(first)
        kept = [2, 1, 1, 1] if stops else TEXT_BUDGETS
        assert_close(varied(encoder, switch).encode_queries(TEXTS, TEXT_BUDGETS), expected(encoder, kept))


def test_a_stop_in_the_first_slot_stops_nothing(make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("dream", budget=Budget(4, 4))
    predict_at(encoder, "<|im_end|>", [(0, 0), (0, 2), (1, 0), (3, 0)])
    found = varied(encoder, "turn-end").encode_queries(TEXTS, TEXT_BUDGETS)
    assert_close(found, varied(encoder, "none").encode_queries(TEXTS, TEXT_BUDGETS))

"""Spread slots, and titles joined to texts.

Legend: K slots, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffretriever.backbones import BackboneOutput
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import join_title
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import TextConfig
from tests.encoders.encoder_cases import WORDS, Make, sequences

ALL_WORDS = " ".join(WORDS)


def read(encoder: MaskedEncoder, text: str, position_ids: torch.Tensor | None = None) -> BackboneOutput:
    """Everything at the slots, straight from the backbone."""
    (prepared,) = encoder.preparer.prepare_queries([text])
    ids = torch.tensor([prepared.input_ids.tolist()])
    first = ids.shape[1] - len(encoder.preparer.tail) - prepared.slots
    slots = torch.arange(first, first + prepared.slots)[None]
    with torch.inference_mode():
        return encoder.backbone.forward(ids, torch.ones_like(ids), slots, position_ids=position_ids)


def test_spread_slots_take_far_positions(make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("bert", slot_positions="spread", budget=Budget(3, 3))
    text, tail = "honey water", len(encoder.preparer.tail)
    before = len(sequences(encoder, [text])[0]) - 3 - tail
    end = encoder.backbone.max_length
    positions = [*range(before), end - 12, end - 28, end - 44, *range(before, before + tail)]
    expected = read(encoder, text, torch.tensor([positions]))
    # Among longer texts, so that the row has pads.
    vectors = encoder.encode_queries([text, ALL_WORDS]).vectors_MH[:3].astype(np.float32)
    exact = torch.nn.functional.normalize(expected.hidden[0], dim=-1).numpy()
    np.testing.assert_allclose(vectors, exact, atol=1e-3)
    natural = make_masked("bert", budget=Budget(3, 3)).encode_queries([text]).vectors_MH
    assert np.abs(natural - vectors).max() > 1e-2


@pytest.mark.parametrize(
    ("join", "title", "text", "joined"),
    [
        ("space", "Honey", "Bees", "Honey Bees"),
        ("period-space", "Honey", "Bees", "Honey. Bees"),
        ("none", "Honey", "Bees", "Bees"),
        ("none", "Honey", "", ""),
        *((join, "", "Bees", "Bees") for join in ("space", "period-space", "none")),
        *((join, "Honey", "", "Honey") for join in ("space", "period-space")),
        *((join, "", "", "") for join in ("space", "period-space", "none")),
    ],
)
def test_title_joins(join: str, title: str, text: str, joined: str) -> None:
    assert join_title(title, text, TextConfig.model_validate({"title_join": join})) == joined

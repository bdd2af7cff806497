"""Explanations name the part of the text that a slot pools from."""

from __future__ import annotations

from typing import Any

import pytest

from diffretriever.backbones.slot_layers import split_into_parts
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.retriever import TextConfig
from tests.encoders.encoder_cases import PARTS, Make

LONG = "Honey bees store water, (in) the winter: a river of copper & sand! " * 3
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "dream": (1, {}),
    "llada": (16, {"tail_length": 0}),
    "bert": (2, {"prompt": {"variant": "bare"}}),
    "modernbert": (5, {"text": TextConfig(max_passage_tokens=11)}),
}
"""Family → slots and fields."""


@pytest.mark.parametrize("family", SHAPES)
def test_parts_are_what_slots_read(family: str, make_masked: Make[MaskedEncoder]) -> None:
    slots, fields = SHAPES[family]
    encoder = make_masked(family, budget=f"q3p{slots}", **PARTS, **fields)
    tokenizer = encoder.preparer.vocabulary.tokenizer
    for text in (LONG, "river", ""):
        (prepared,) = encoder.preparer.prepare_passages([""], [text])
        batch = encoder.masked_batch([prepared])
        is_text_BL = batch.mask_BL.bool() & (batch.slots_BL < 0)
        view_KL = split_into_parts(is_text_BL, batch.valid_BK.sum(1), slots)[0]
        left = encoder.preparer.frame("passage", slots).left
        in_text_L = is_text_BL[0].clone()
        in_text_L[: len(left)] = False
        in_text_L[len(left) + prepared.n_tokens :] = False
        expected = [tokenizer.decode(batch.ids_BL[0][sees_L & in_text_L]) for sees_L in view_KL]
        actual = encoder.preparer.parts(text, "passage", slots)
        assert [squeezed(part) for part in actual] == [squeezed(part) for part in expected]
        assert all(part in text for part in actual)


def squeezed(text: str) -> str:
    """Remove spaces, continuation marks and capitals, which tokenizers change."""
    return "".join(text.replace("##", "").lower().split())

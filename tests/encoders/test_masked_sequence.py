"""The sequence of paper Eq. 1, written out by hand, and what is read from it.

Legend: L length, K slots, H hidden size, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import SYSTEM
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import PromptConfig
from tests.encoders.encoder_cases import Make, sequences

TEXT = "honey and river water"
ASKS = {
    1: "Use one word to represent the {side} in a retrieval task. Make sure your word is in lowercase.",
    4: "Use a few words to represent the {side} in a retrieval task. Make sure your words are in lowercase.",
}
STARTS = {1: 'The word is "', 4: 'The words are "'}


BEFORE = (
    f"<|startoftext|><|start_header_id|>system<|end_header_id|>\n\n{SYSTEM}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n"
)
AFTER = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
"""LLaDA's chat form around the user's message, as its model card prints it."""
TAILS = {0: "", 1: "<|endoftext|>", 3: '"<|eot_id|><|endoftext|>'}


def by_hand(encoder: MaskedEncoder, side: str, slots: int, tail: int = 3) -> list[int]:
    left = f'{BEFORE}{side.capitalize()}: "'
    right = f'". {ASKS[slots].format(side=side)}{AFTER}{STARTS[slots]}'
    parts = (left, TEXT, right, "<|mdm_mask|>" * slots, TAILS[tail])
    tokenizer = encoder.backbone.vocabulary.tokenizer
    return [i for part in parts for i in tokenizer(part, add_special_tokens=False)["input_ids"]]


@pytest.mark.parametrize(("slots", "tail"), [(1, 0), (4, 1), (4, 3)])
def test_the_sequence(slots: int, tail: int, make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("llada", tail_length=tail, budget=Budget(slots, 5 - slots))
    assert sequences(encoder, [TEXT]) == [by_hand(encoder, "query", slots, tail)]
    passage = encoder.preparer.prepare_passages([""], [TEXT])[0]
    assert passage.input_ids.tolist() == by_hand(encoder, "passage", 5 - slots, tail)
    assert (passage.slots, passage.n_tokens) == (
        5 - slots,
        len(encoder.backbone.vocabulary.tokenizer(TEXT)["input_ids"]),
    )


@pytest.mark.parametrize(("tail", "offset"), [(0, 0), (3, -1)])
def test_what_is_read_where(tail: int, offset: int, make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("llada", tail_length=tail, read_offset=offset, budget=Budget(4, 4))
    ids = torch.tensor([by_hand(encoder, "query", 4, tail)])
    first = ids.shape[1] - tail - 4
    with torch.inference_mode():
        states = encoder.backbone.forward(ids, torch.ones_like(ids), torch.arange(first, first + 4)[None] + offset)
    found = encoder.encode_queries([TEXT])
    vectors_KH = torch.nn.functional.normalize(states.hidden[0], dim=-1).numpy()
    np.testing.assert_allclose(found.vectors_MH.astype(np.float32), vectors_KH, atol=1e-3)

    words = [encoder.backbone.vocabulary.tokenizer.convert_tokens_to_ids(word) for word in ("honey", "river", "water")]
    weights_V = torch.log1p(torch.relu(states.logits[0].amax(0))).numpy()
    expected = [word for word in sorted(words) if weights_V[word] > 0]
    assert expected
    assert found.impact_ids.tolist() == expected
    np.testing.assert_allclose(found.impact_weights, weights_V[expected], atol=1e-5)
    best_K = states.logits[0][:, sorted(words)].argmax(-1)
    assert found.slot_tokens.tolist() == [sorted(words)[i] for i in best_K]


def test_the_bare_variant_has_no_words(make_masked: Make[MaskedEncoder]) -> None:
    dream, bert = (make_masked(name, prompt=PromptConfig(variant="bare")) for name in ("dream", "bert"))
    assert (
        dream.backbone.vocabulary.tokenizer.decode(sequences(dream, ["river"])[0])
        == 'river<|mask|>"<|im_end|><|endoftext|>'
    )
    names = bert.backbone.vocabulary.tokenizer.convert_ids_to_tokens(sequences(bert, ["river"])[0])
    assert names == ["[CLS]", "river", "[MASK]", '"', "[SEP]", "[SEP]"]
    assert np.isfinite(dream.encode_queries([""]).vectors_MH).all()

"""The switches of the masked method: impacts kept and rounded, space variants, spread slots, titles.

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
from diffretriever.schemas.retriever import ContentWordsConfig, PromptConfig, TextConfig
from tests.encoders.encoder_cases import TEXTS, WORDS, Make, impacts, sequences

ALL_WORDS = " ".join(WORDS)
FOLD = ContentWordsConfig(fold_space_variants=True)


def read(encoder: MaskedEncoder, text: str, position_ids: torch.Tensor | None = None) -> BackboneOutput:
    """Everything at the slots, straight from the backbone."""
    (prepared,) = encoder.preparer.prepare_queries([text])
    ids = torch.tensor([prepared.input_ids.tolist()])
    first = ids.shape[1] - len(encoder.preparer.tail) - prepared.slots
    slots = torch.arange(first, first + prepared.slots)[None]
    with torch.inference_mode():
        return encoder.backbone.forward(ids, torch.ones_like(ids), slots, position_ids=position_ids)


@pytest.mark.parametrize("topk", [1, 3, 100])
def test_topk_keeps_the_heaviest(topk: int, make_masked: Make[MaskedEncoder]) -> None:
    whole = make_masked("llada", budget=Budget(4, 4)).encode_queries(TEXTS)
    kept = make_masked("llada", budget=Budget(4, 4), sparse_topk=topk).encode_queries(TEXTS)
    assert len(impacts(whole, 0).ids) > 1
    for row in range(len(TEXTS)):
        ids, weights = impacts(whole, row)
        heaviest = np.sort(np.argsort(-weights, kind="stable")[:topk])
        assert impacts(kept, row).ids.tolist() == ids[heaviest].tolist()
        np.testing.assert_array_equal(impacts(kept, row).weights, weights[heaviest])


@pytest.mark.parametrize(("rounding", "rounded"), [("trunc100", np.trunc), ("round100", np.rint)])
def test_rounding(rounding: str, rounded: np.ufunc, make_masked: Make[MaskedEncoder]) -> None:
    plain = make_masked("dream", budget=Budget(4, 4)).encode_queries([ALL_WORDS])
    found = make_masked("dream", budget=Budget(4, 4), sparse_rounding=rounding).encode_queries([ALL_WORDS])
    expected = rounded(plain.impact_weights * np.float32(100))
    assert found.impact_ids.tolist() == plain.impact_ids[expected > 0].tolist()
    np.testing.assert_array_equal(found.impact_weights, expected[expected > 0])
    assert len(found.impact_weights) > 2


def test_folding_takes_the_larger_weight(make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("dream", content_words=FOLD, budget=Budget(2, 2))
    (prepared,) = encoder.preparer.prepare_queries([ALL_WORDS])
    names = encoder.backbone.vocabulary.tokenizer.convert_ids_to_tokens
    for own, variant in zip(prepared.content_ids.tolist(), prepared.variant_ids.tolist(), strict=True):
        assert names(variant).removeprefix("Ġ") == names(own).removeprefix("Ġ")
    weights_V = torch.log1p(torch.relu(read(encoder, ALL_WORDS).logits[0].amax(0))).numpy()
    own_T, variant_T = weights_V[prepared.content_ids], weights_V[prepared.variant_ids]
    assert (own_T > variant_T).any()
    assert (own_T < variant_T).any()
    larger_T = np.maximum(own_T, variant_T)
    found = encoder.encode_queries([ALL_WORDS])
    assert found.impact_ids.tolist() == prepared.content_ids[larger_T > 0].tolist()
    np.testing.assert_allclose(found.impact_weights, larger_T[larger_T > 0], atol=1e-5)
    assert encoder.encode_queries([""]).impact_offsets.tolist() == [0, 0]


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
def test_title_joins(join: str, title: str, text: str, joined: str, make_masked: Make[MaskedEncoder]) -> None:
    config = TextConfig.model_validate({"title_join": join})
    assert join_title(title, text, config) == joined
    preparer = make_masked("dream", text=config, prompt=PromptConfig(variant="bare"), tail_length=0).preparer
    (prepared,) = preparer.prepare_passages([title], [text])
    assert preparer.vocabulary.tokenizer.decode(prepared.input_ids) == f"{joined}<|mask|>"

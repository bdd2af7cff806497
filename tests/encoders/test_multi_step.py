"""Filling slots over several passes, held against one text at a time in plain loops over full logits.

Legend: K slots, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.budget import Budget
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import TEXTS, Make, impacts

BUDGETS = [8, 4, 2, 7, 1, 3, 5, 16]


class Slot(NamedTuple):
    """What is kept of a slot from the pass that filled it."""

    hidden_H: torch.Tensor
    logits_V: torch.Tensor
    token: int
    step: int


def fill_slowly(encoder: MaskedEncoder, text: str, slots: int, **fields: Any) -> list[Slot]:
    """One text: `fields` are steps, schedule, confidence and read_offset of the config."""
    (prepared,) = encoder.preparer.prepare_queries([text], [slots])
    ids = prepared.input_ids.tolist()
    places = [place for place, token in enumerate(ids) if token == encoder.backbone.vocabulary.mask_token_id]
    assert len(places) == slots
    read_at = [place + fields["read_offset"] for place in places]
    found: dict[int, Slot] = {}
    for step in range(fields["steps"]):
        masked = [k for k in range(slots) if k not in found]
        with torch.inference_mode():
            output = encoder.backbone.forward(
                torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64), torch.tensor([read_at])
            )
        hidden_KH, logits_KV = output.hidden[0], output.logits[0]
        surest = sorted(masked, key=lambda k: (-confidence_of(logits_KV[k]), k))
        for k in surest[: count_of(slots, len(masked), step, fields["steps"], fields["schedule"])]:
            token = max(range(logits_KV.shape[1]), key=logits_KV[k].tolist().__getitem__)
            found[k] = Slot(hidden_KH[k], logits_KV[k], token, step)
            ids[places[k]] = token
    return [found[k] for k in range(slots)]


def confidence_of(logits_V: torch.Tensor) -> float:
    probabilities = torch.softmax(logits_V.double(), 0).tolist()
    return sum(p * math.log(p + 1e-10) for p in probabilities)


def count_of(slots: int, left: int, step: int, steps: int, schedule: str) -> int:
    if step == steps - 1:
        return left
    now, then = (1 - 0.999 * at / steps for at in (step, step + 1))
    planned = slots // steps if schedule == "even" else math.floor(left * (1 - then / now))
    return min(left, max(1, planned))


def assert_read(encoder: MaskedEncoder, found: Representations, row: int, text: str, slots: list[Slot]) -> None:
    """Row `row` of what was found is what `slots` say of `text`."""
    own = slice(found.offsets[row], found.offsets[row + 1])
    vectors_KH = torch.stack([slot.hidden_H / slot.hidden_H.norm() for slot in slots]).numpy()
    np.testing.assert_allclose(found.vectors_MH[own].astype(np.float32), vectors_KH, atol=1e-3)
    words = encoder.preparer.prepare_queries([text])[0].content_ids.tolist()
    weights = {word: max(math.log1p(max(slot.logits_V[word].item(), 0)) for slot in slots) for word in words}
    ids, values = impacts(found, row)
    assert ids.tolist() == [word for word in words if weights[word] > 0]
    np.testing.assert_allclose(values, [weights[word] for word in ids.tolist()], atol=1e-4)
    best = [max(words, key=slot.logits_V.tolist().__getitem__) if words else -1 for slot in slots]
    assert found.slot_tokens[own].tolist() == best


def varied(encoder: MaskedEncoder, **fields: Any) -> MaskedEncoder:
    """The same model with other fields in its config."""
    return MaskedEncoder(encoder.config.model_copy(update=fields), encoder.backbone, encoder.preparer)


@pytest.fixture(scope="module", params=["dream", "llada"])
def plain(request: pytest.FixtureRequest, make_masked: Make[MaskedEncoder]) -> MaskedEncoder:
    """One pass, the paper's read offset."""
    return make_masked(request.param, budget=Budget(4, 16))


@pytest.mark.parametrize(("schedule", "offset"), [("time-grid", -1), ("even", 0)])
def test_mixed_budgets_equal_each_text_filled_slowly(plain: MaskedEncoder, schedule: str, offset: int) -> None:
    for steps in (2, 4):
        fields = {"steps": steps, "schedule": schedule, "read_offset": offset}
        encoder = varied(plain, **fields)
        found = encoder.encode_queries(TEXTS, BUDGETS)
        assert np.diff(found.offsets).tolist() == BUDGETS
        for row, (text, slots) in enumerate(zip(TEXTS, BUDGETS, strict=True)):
            filled = fill_slowly(encoder, text, slots, **fields)
            assert len({slot.step for slot in filled}) == min(steps, slots)
            assert_read(encoder, found, row, text, filled)


@pytest.mark.parametrize(("schedule", "first_pass"), [("time-grid", 7), ("even", 8)])
def test_a_slot_keeps_what_the_pass_that_filled_it_said(plain: MaskedEncoder, schedule: str, first_pass: int) -> None:
    """As many slots as the first pass fills are as with one pass, and they are the surest; the others changed."""
    encoder = varied(plain, steps=2, schedule=schedule)
    one, two = (each.encode_passages([""], [TEXTS[0]]).vectors_MH.astype(np.float32) for each in (plain, encoder))
    distance_K = np.abs(one - two).max(axis=1)
    kept = np.flatnonzero(distance_K < 1e-3)
    assert len(kept) == first_pass
    assert (np.delete(distance_K, kept) > 1e-2).all()


def test_variants_with_a_space_count_in_every_pass(plain: MaskedEncoder) -> None:
    folding = plain.config.content_words.model_copy(update={"fold_space_variants": True})
    config = plain.config.model_copy(update={"content_words": folding, "steps": 2})
    encoder = MaskedEncoder(config, plain.backbone, MaskedEncoder.make_preparer(config, plain.backbone.vocabulary))
    fields = {"steps": 2, "schedule": "time-grid", "confidence": "entropy", "read_offset": 0}
    (prepared,) = encoder.preparer.prepare_queries(TEXTS[:1])
    assert (prepared.content_ids != prepared.variant_ids).any()
    logits_V = torch.stack([slot.logits_V for slot in fill_slowly(encoder, TEXTS[0], 4, **fields)]).amax(0).numpy()
    expected = np.log1p(np.maximum(0, np.maximum(logits_V[prepared.content_ids], logits_V[prepared.variant_ids])))
    found = encoder.encode_queries(TEXTS[:1])
    assert found.impact_ids.tolist() == prepared.content_ids[expected > 0].tolist()
    np.testing.assert_allclose(found.impact_weights, expected[expected > 0], atol=1e-4)


@pytest.mark.parametrize(
    ("truncation", "name", "step"),
    [("special", "eos_token_id", 0), ("turn-end", "turn_end_id", 1), ("quote", "quote_id", 1)],
)
def test_slots_from_a_stop_token_on_are_left_out(
    truncation: str, name: str, step: int, make_masked: Make[MaskedEncoder]
) -> None:
    """Those of either pass: what a slot predicts and a stop token change places in the output head."""
    encoder = make_masked("llada", budget=Budget(8, 8), steps=2, schedule="even", stop_truncation=truncation)
    fields = {"steps": 2, "schedule": "even", "confidence": "entropy", "read_offset": 0}
    before = fill_slowly(encoder, TEXTS[0], 8, **fields)
    tokens = [slot.token for slot in before]
    predicted = next(slot.token for slot in before[1:] if slot.step == step and tokens.count(slot.token) == 1)
    stop, head = getattr(encoder.backbone.vocabulary, name), encoder.backbone.output_projection
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.weight[[predicted, stop]] = head.weight[[stop, predicted]]
    filled = fill_slowly(encoder, TEXTS[0], 8, **fields)
    cut = [slot.token for slot in filled].index(stop)
    assert cut > 0
    assert filled[cut].step == step
    found = encoder.encode_queries(TEXTS[:1])
    assert found.offsets.tolist() == [0, cut]
    assert_read(encoder, found, 0, TEXTS[0], filled[:cut])


def test_logits_that_are_no_numbers_are_an_error_that_names_the_text(make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("dream", budget=Budget(4, 4), steps=2)
    (copper,) = encoder.backbone.vocabulary.tokenizer("copper", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        encoder.backbone.model.get_input_embeddings().weight[copper] = torch.nan
    assert np.isfinite(encoder.encode_queries(["river"]).vectors_MH).all()
    with pytest.raises(ValueError, match=r"not finite numbers.*Query: \"copper and honey.*backbone\.dtype"):
        encoder.encode_queries(["river", "copper and honey"])

"""Slots filled over several passes equal plain loops over one text at a time.

Legend: K slots, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from diffretriever.encoders.masked import MaskedEncoder, before_stop
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.budget import Budget
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import TEXTS, Make, impacts

BUDGETS = [8, 4, 2, 7, 1, 3, 5, 16]


class Slot(NamedTuple):
    hidden_H: torch.Tensor
    logits_V: torch.Tensor
    token: int
    step: int


def fill_slowly(encoder: MaskedEncoder, text: PreparedText) -> list[Slot]:
    """Fill the slots of one text alone; its last pass has gradients if they are enabled."""
    config, batch = encoder.config, encoder.masked_batch([text])
    ids = text.input_ids.tolist()
    places = [place for place, token in enumerate(ids) if token == encoder.backbone.vocabulary.mask_token_id]
    assert len(places) == text.slots
    read_at, passes = torch.tensor([places]) + config.read_offset, min(config.steps, text.slots)
    found: dict[int, Slot] = {}
    for step in range(passes):
        masked = [k for k in range(text.slots) if k not in found]
        with torch.set_grad_enabled(step == passes - 1):
            hidden, logits = encoder.backbone.forward(
                torch.tensor([ids]), batch.mask_BL, read_at, position_ids=batch.position_ids_BL
            )
        hidden_KH, logits_KV = hidden[0], logits[0].detach()
        surest = sorted(masked, key=lambda k: (-confidence_of(logits_KV[k]), k))
        for k in surest[: count_of(text.slots, len(masked), step, passes, config.schedule)]:
            token = max(range(logits_KV.shape[1]), key=logits_KV[k].tolist().__getitem__)
            found[k] = Slot(hidden_KH[k], logits_KV[k], token, step)
            ids[places[k]] = token
    return [found[k] for k in range(text.slots)]


def confidence_of(logits_V: torch.Tensor) -> float:
    probabilities = torch.softmax(logits_V.double(), 0).tolist()
    return sum(p * math.log(p + 1e-10) for p in probabilities)


def count_of(slots: int, left: int, step: int, steps: int, schedule: str) -> int:
    if step == steps - 1:
        return left
    now, then = (1 - 0.999 * at / steps for at in (step, step + 1))
    planned = slots // steps if schedule == "even" else math.floor(left * (1 - then / now))
    return min(left, max(1, planned))


def assert_read(found: Representations, row: int, text: PreparedText, slots: list[Slot]) -> None:
    """Compare row `row` of the batch with `slots`, filled one text at a time."""
    own = slice(found.offsets[row], found.offsets[row + 1])
    vectors_KH = torch.stack([slot.hidden_H / slot.hidden_H.norm() for slot in slots]).detach().numpy()
    np.testing.assert_allclose(found.vectors_MH[own].astype(np.float32), vectors_KH, atol=1e-3)
    words = text.content_ids.tolist()
    weights = {word: max(math.log1p(max(slot.logits_V[word].item(), 0)) for slot in slots) for word in words}
    ids, values = impacts(found, row)
    assert ids.tolist() == [word for word in words if weights[word] > 0]
    np.testing.assert_allclose(values, [weights[word] for word in ids.tolist()], atol=1e-4)
    best = [max(words, key=slot.logits_V.tolist().__getitem__) if words else -1 for slot in slots]
    assert found.slot_tokens[own].tolist() == best


def varied(encoder: MaskedEncoder, **fields: Any) -> MaskedEncoder:
    return MaskedEncoder(encoder.config.model_copy(update=fields), encoder.backbone, encoder.preparer)


@pytest.fixture(scope="module", params=["dream", "llada"])
def plain(request: pytest.FixtureRequest, make_masked: Make[MaskedEncoder]) -> MaskedEncoder:
    return make_masked(request.param, budget=Budget(4, 16))


@pytest.mark.parametrize(("schedule", "offset"), [("time-grid", -1), ("even", 0)])
def test_mixed_budgets_equal_each_text_filled_slowly(plain: MaskedEncoder, schedule: str, offset: int) -> None:
    for steps in (2, 4):
        encoder = varied(plain, steps=steps, schedule=schedule, read_offset=offset)
        found = encoder.encode_queries(TEXTS, BUDGETS)
        assert np.diff(found.offsets).tolist() == BUDGETS
        for row, text in enumerate(encoder.preparer.prepare_queries(TEXTS, BUDGETS)):
            filled = fill_slowly(encoder, text)
            assert len({slot.step for slot in filled}) == min(steps, text.slots)
            assert_read(found, row, text, filled)


@pytest.mark.parametrize("step", [0, 1])
def test_slots_from_a_stop_token_on_are_left_out(step: int, make_masked: Make[MaskedEncoder]) -> None:
    """In either pass: a slot's predicted token and a stop token are swapped in the output head."""
    encoder = make_masked("llada", budget=Budget(8, 8), steps=2, schedule="even", stop_truncation="special")
    (text,) = encoder.preparer.prepare_queries(TEXTS[:1])
    before = fill_slowly(encoder, text)
    tokens = [slot.token for slot in before]
    predicted = next(slot.token for slot in before[1:] if slot.step == step and tokens.count(slot.token) == 1)
    stop, head = encoder.backbone.vocabulary.eos_token_id, encoder.backbone.output_projection
    assert isinstance(head, torch.nn.Linear)
    assert stop is not None
    with torch.no_grad():
        head.weight[[predicted, stop]] = head.weight[[stop, predicted]]
    filled = fill_slowly(encoder, text)
    cut = [slot.token for slot in filled].index(stop)
    assert cut > 0
    assert filled[cut].step == step
    found = encoder.encode_queries(TEXTS[:1])
    assert found.offsets.tolist() == [0, cut]
    assert_read(found, 0, text, filled[:cut])


def test_logits_that_are_no_numbers_are_an_error_that_names_the_text(make_masked: Make[MaskedEncoder]) -> None:
    encoder = make_masked("dream", budget=Budget(4, 4), steps=2)
    (copper,) = encoder.backbone.vocabulary.tokenizer("copper", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        encoder.backbone.model.get_input_embeddings().weight[copper] = torch.nan
    assert np.isfinite(encoder.encode_queries(["river"]).vectors_MH).all()
    with pytest.raises(ValueError, match=r"not finite numbers.*Query: \"copper and honey.*backbone\.dtype"):
        encoder.encode_queries(["river", "copper and honey"])


@pytest.mark.parametrize(
    ("tokens", "slots", "kept"),
    [([5, 6, 7, 8], 4, 4), ([5, 0, 9, 8], 4, 1), ([5, 6, 7, 9], 4, 3), ([0, 9, 9, 9], 4, 4), ([5, 6, 9, 9], 2, 2)],
)
def test_slots_before_the_first_stop(tokens: list[int], slots: int, kept: int) -> None:
    kept_BK = before_stop(torch.tensor([tokens]), torch.arange(4)[None] < slots, torch.tensor([9, 0]))
    assert kept_BK.tolist() == [[k < kept for k in range(4)]]

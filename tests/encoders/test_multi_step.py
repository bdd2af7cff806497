"""Filling slots over several passes, held against one text at a time in plain loops over full logits.

Legend: K slots, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from diffretriever.encoders.masked import MaskedEncoder, before_stop
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
        surest = sorted(masked, key=lambda k: (-confidence_of(logits_KV[k], fields["confidence"]), k))
        for k in surest[: count_of(slots, len(masked), step, fields["steps"], fields["schedule"])]:
            token = max(range(logits_KV.shape[1]), key=logits_KV[k].tolist().__getitem__)
            found[k] = Slot(hidden_KH[k], logits_KV[k], token, step)
            ids[places[k]] = token
    return [found[k] for k in range(slots)]


def confidence_of(logits_V: torch.Tensor, confidence: str) -> float:
    probabilities = torch.softmax(logits_V.double(), 0).tolist()
    if confidence == "max-probability":
        return max(probabilities)
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


@pytest.mark.parametrize(
    ("schedule", "confidence", "offset"), [("time-grid", "entropy", -1), ("even", "max-probability", 0)]
)
def test_mixed_budgets_equal_each_text_filled_slowly(
    plain: MaskedEncoder, schedule: str, confidence: str, offset: int
) -> None:
    for steps in (2, 4):
        fields = {"steps": steps, "schedule": schedule, "confidence": confidence, "read_offset": offset}
        encoder = varied(plain, **fields)
        found = encoder.encode_queries(TEXTS, BUDGETS)
        assert np.diff(found.offsets).tolist() == BUDGETS
        for row, (text, slots) in enumerate(zip(TEXTS, BUDGETS, strict=True)):
            filled = fill_slowly(encoder, text, slots, **fields)
            assert len({slot.step for slot in filled}) == min(steps, slots)
            assert_read(encoder, found, row, text, filled)


@pytest.mark.parametrize("step", [0, 1])
def test_slots_from_a_stop_token_on_are_left_out(step: int, make_masked: Make[MaskedEncoder]) -> None:
    """Those of either pass: what a slot predicts and a stop token change places in the output head."""
    encoder = make_masked("llada", budget=Budget(8, 8), steps=2, schedule="even", stop_truncation="special")
    fields = {"steps": 2, "schedule": "even", "confidence": "entropy", "read_offset": 0}
    before = fill_slowly(encoder, TEXTS[0], 8, **fields)
    tokens = [slot.token for slot in before]
    predicted = next(slot.token for slot in before[1:] if slot.step == step and tokens.count(slot.token) == 1)
    stop, head = encoder.backbone.vocabulary.eos_token_id, encoder.backbone.output_projection
    assert isinstance(head, torch.nn.Linear)
    assert stop is not None
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


@pytest.mark.parametrize(
    ("tokens", "slots", "kept"),
    [([5, 6, 7, 8], 4, 4), ([5, 0, 9, 8], 4, 1), ([5, 6, 7, 9], 4, 3), ([0, 9, 9, 9], 4, 4), ([5, 6, 9, 9], 2, 2)],
)
def test_slots_before_the_first_stop(tokens: list[int], slots: int, kept: int) -> None:
    kept_BK = before_stop(torch.tensor([tokens]), torch.arange(4)[None] < slots, torch.tensor([9, 0]))
    assert kept_BK.tolist() == [[k < kept for k in range(4)]]

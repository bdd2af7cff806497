"""The maths of filling slots, held against the authors' schedules and against plain loops.

Legend: B texts, K slots, S passes, V vocabulary.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from diffretriever.encoders import masked
from diffretriever.encoders.masked import before_stop, choose, confidences, predict, reveal_counts


def counts_by_hand(slots: int, steps: int, schedule: str) -> list[int]:
    """One text, in exact fractions."""
    times = [1 - Fraction(999, 1000) * step / steps for step in range(steps + 1)]
    counts: list[int] = []
    while (left := slots - sum(counts)) > 0:
        step = len(counts)
        share = Fraction(slots, steps) if schedule == "even" else left * (1 - times[step + 1] / times[step])
        counts.append(left if step == steps - 1 else max(1, math.floor(share)))
    return counts


@pytest.mark.parametrize("schedule", ["time-grid", "even"])
def test_schedules_of_any_size(schedule: masked.Schedule) -> None:
    slots = list(range(1, 41))
    for steps in range(1, 20):
        rows = reveal_counts(torch.tensor(slots), steps, schedule).tolist()
        expected = [counts_by_hand(k, steps, schedule) for k in slots]
        assert rows == [counts + [0] * (steps - len(counts)) for counts in expected]
        assert [len(counts) for counts in expected] == [min(steps, k) for k in slots]


def test_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "_SLOTS_AT_ONCE", 4)
    logits_BKV = (3 * torch.randn(3, 5, 50, generator=torch.Generator().manual_seed(0))).bfloat16()
    sure_BK = confidences(logits_BKV)
    tokens_BK, finite_BK = predict(logits_BKV)
    assert sure_BK.dtype == torch.float32
    for b in range(3):
        for k in range(5):
            logits = logits_BKV[b, k].tolist()
            total = sum(math.exp(value) for value in logits)
            probabilities = [math.exp(value) / total for value in logits]
            entropy = -sum(p * math.log(p + 1e-10) for p in probabilities)
            assert sure_BK[b, k].item() == pytest.approx(-entropy, abs=1e-5)
            assert tokens_BK[b, k] == logits.index(max(logits))
    assert finite_BK.all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_are_found(wrong: float) -> None:
    logits_BKV = torch.zeros(2, 3, 7)
    logits_BKV[1, 2, 4] = wrong
    assert predict(logits_BKV)[1].tolist() == [[True, True, True], [True, True, False]]


def test_the_most_confident_masked_slots_are_chosen() -> None:
    generator = torch.Generator().manual_seed(1)
    # Few distinct values, so that there are many ties.
    confidences_BK = torch.randint(0, 3, (40, 6), generator=generator).float()
    masked_BK = torch.rand(40, 6, generator=generator) < 0.7
    count_B = (masked_BK.sum(1) * torch.rand(40, generator=generator)).round().long()
    chosen_BK = choose(confidences_BK, masked_BK, count_B)
    for b in range(40):
        ranked = sorted((k for k in range(6) if masked_BK[b, k]), key=lambda k: (-confidences_BK[b, k].item(), k))
        assert chosen_BK[b].nonzero().flatten().tolist() == sorted(ranked[: int(count_B[b])])
    assert chosen_BK.any()


@pytest.mark.parametrize(
    ("tokens", "slots", "kept"),
    [([5, 6, 7, 8], 4, 4), ([5, 0, 9, 8], 4, 1), ([5, 6, 7, 9], 4, 3), ([0, 9, 9, 9], 4, 4), ([5, 6, 9, 9], 2, 2)],
)
def test_slots_before_the_first_stop(tokens: list[int], slots: int, kept: int) -> None:
    tokens_BK, valid_BK = torch.tensor([tokens]), torch.arange(4)[None] < slots
    kept_BK = before_stop(tokens_BK, valid_BK, torch.tensor([9, 0]))
    assert kept_BK.tolist() == [[k < kept for k in range(4)]]

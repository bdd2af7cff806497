"""The order in which several passes fill mask slots (paper App. A.1): pure functions of logits and masks.

Legend: B texts of a batch, K most slots of the batch, P passes, M slots of all texts, V vocabulary.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

Schedule: TypeAlias = Literal["time-grid", "even"]
Confidence: TypeAlias = Literal["entropy", "max-probability"]

_LAST_TIME = 0.001
# The authors' addend in the logarithm of the entropy, so that a probability of zero counts nothing.
_TINY = 1e-10
# Slots whose probabilities are in memory in fp32 at a time: 0.6 GB for a vocabulary of 150,000.
_SLOTS_AT_ONCE = 1024


def reveal_counts(slots_B: torch.Tensor, steps: int, schedule: Schedule) -> torch.Tensor:
    """Return how many slots each pass fills, int64 [B, P]; rows sum to `slots_B` (paper App. A.1).

    A pass fills at least one slot, so a text of K < S slots is done after K passes: zeros follow, and P is the
    smaller of S and the largest K.

    Args:
        slots_B: int64, K of each text, at least 1.
        steps: S, at least 1.
        schedule: `time-grid` goes by the times t = 1 … 0.001: of n masks, floor(n (1 - t_next / t)) are filled.
            `even` fills floor(K / S) in each pass. The last pass fills the rest.
    """
    # With fewer slots than passes both schedules fill one slot a pass, whatever S.
    steps = min(steps, int(slots_B.max()))
    times = torch.linspace(1, _LAST_TIME, steps + 1, dtype=torch.float64)
    counts = []
    left_B = slots_B
    for step in range(steps - 1):
        planned_B = slots_B // steps if schedule == "even" else (left_B * (1 - times[step + 1] / times[step])).long()
        counts.append(planned_B.clamp(min=1).minimum(left_B))
        left_B = left_B - counts[-1]
    return torch.stack([*counts, left_B], dim=1)


def predict(logits_BKV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each slot's token, int64 [B, K], and whether all its logits are finite numbers, bool [B, K].

    The token is the one with the largest logit, of equal ones the smallest id.
    """
    low_BK, high_BK = logits_BKV.aminmax(dim=-1)
    return logits_BKV.argmax(-1), low_BK.isfinite() & high_BK.isfinite()


def confidences(logits_BKV: torch.Tensor, kind: Confidence) -> torch.Tensor:
    """Return how sure the model is of each slot, float32 [B, K] on the logits' device: larger is surer.

    Args:
        logits_BKV: floating.
        kind: `entropy` is the negative entropy in nats, `max-probability` the largest probability.
    """
    found = []
    for part_MV in logits_BKV.flatten(0, 1).split(_SLOTS_AT_ONCE):
        probabilities_MV = part_MV.softmax(-1, dtype=torch.float32)
        if kind == "max-probability":
            found.append(probabilities_MV.amax(-1))
        else:
            found.append((probabilities_MV * (probabilities_MV + _TINY).log_()).sum(-1))
    return torch.cat(found).view(logits_BKV.shape[:2])


def choose(confidences_BK: torch.Tensor, masked_BK: torch.Tensor, count_B: torch.Tensor) -> torch.Tensor:
    """Return the `count_B` most confident of each text's masked slots, bool [B, K]; ties go to the earlier slot."""
    open_BK = confidences_BK.masked_fill(~masked_BK, -torch.inf)
    order_BK = open_BK.argsort(dim=1, descending=True, stable=True)
    first_BK = torch.arange(masked_BK.shape[1]) < count_B[:, None]
    return torch.zeros_like(masked_BK).scatter(1, order_BK, first_BK)


def before_stop(tokens_BK: torch.Tensor, valid_BK: torch.Tensor, stop_ids: torch.Tensor) -> torch.Tensor:
    """Return the slots before a text's first stop token, bool [B, K].

    A text whose first slot stops keeps all its slots, because a text has at least one vector.

    Args:
        tokens_BK: int64, the token of each slot.
        valid_BK: bool, the slots that a text has: its first ones.
        stop_ids: int64, in any order.
    """
    stops_BK = torch.isin(tokens_BK, stop_ids)
    before_BK = stops_BK.cumsum(1) == 0
    return valid_BK & (before_BK | stops_BK[:, :1])

"""The learning rate: a linear warm-up, then half a cosine down to zero."""

from __future__ import annotations

import math

from schemas.training import Recipe


def learning_rate(recipe: Recipe, step: int, total_steps: int) -> float:
    """Return the rate of step `step`, counted from 0. The first one learns something, the last one almost nothing."""
    warmup_steps = math.ceil(recipe.warmup * total_steps)
    if step < warmup_steps:
        return recipe.learning_rate * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

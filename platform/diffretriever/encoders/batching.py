"""Batches filled by a budget of padded tokens, from texts sorted by length: little padding, steady memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def token_budget_batches(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first, each batch at most `max_tokens` after padding.

    A single text longer than the budget makes a batch of its own. Longest first, so that a batch that does not fit
    in memory fails at once rather than at the end.

    Args:
        lengths: int array [N], tokens of each text.
        max_tokens: budget, rows times the longest row.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows

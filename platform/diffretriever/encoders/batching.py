"""Batches of texts sorted by length: little padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_SIMILAR = 0.8


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


def similar_lengths(lengths: np.ndarray, least_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first: groups of texts with four fifths of the longest one's tokens or more.

    Shorter texts fill up a group that has fewer than `least_tokens`, for a small pass takes as long as a larger one.

    Args:
        lengths: int array [N], tokens of each text.
        least_tokens: rows times the longest row; only the last group may have fewer.
    """
    order = np.argsort(-lengths, kind="stable")
    descending = -lengths[order]
    start = 0
    while start < len(order):
        longest = max(1, -int(descending[start]))
        similar = int(np.searchsorted(descending, -_SIMILAR * longest, side="right"))
        end = max(similar, start + -(-least_tokens // longest))
        yield order[start:end]
        start = end

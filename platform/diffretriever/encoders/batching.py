"""Batches of texts by a budget of tokens.

Legend: N texts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

TOKENS_PER_BATCH_GPU = 16_384
"""Keeps a GPU busy, and is a quarter of a block of the encode job with a large model. A batch of a whole block would be
padded to its longest text, so that sorting by length did nothing."""
TOKENS_PER_BATCH_CPU = 2048
# Rows times the longest row, of texts that run without pads, in budgets of a batch.
_MOST_PADDED = 2
# Texts of a group have at least this share of the longest one's tokens.
_SIMILAR = 0.8


def tokens_per_batch(device: torch.device) -> int:
    """Return the default budget of a batch on a device, in tokens with padding."""
    return TOKENS_PER_BATCH_CPU if device.type == "cpu" else TOKENS_PER_BATCH_GPU


def token_batches(lengths: np.ndarray, max_tokens: int, *, packed: bool = False) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first, each batch at most `max_tokens` after padding, or a single text.

    Longest first, so that a batch that does not fit in memory fails at once rather than at the end. Packed texts fill
    the budget without padding. Tensors around their pass are padded even so (ids, states to be pooled, the cache of
    decoding): short texts that a long one would pad to more than twice the budget wait for the next batch.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = lengths[order].cumsum()
    start, used = 0, 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        rows = max_tokens // longest
        if packed:
            fitting = int(np.searchsorted(ends, used + max_tokens, side="right")) - start
            rows = min(fitting, _MOST_PADDED * max_tokens // longest)
        rows = max(1, rows)
        yield order[start : start + rows]
        start += rows
        used = int(ends[min(start, len(ends)) - 1])


def similar_lengths(lengths: np.ndarray, least_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays, longest texts first: groups of texts with four fifths of the longest one's tokens or more.

    Shorter texts fill up a group of fewer than `least_tokens`, padded, because a small pass takes as long as a larger.
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

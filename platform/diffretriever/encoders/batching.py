"""Batches of texts with a limited number of tokens.

Legend: N texts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

TOKENS_PER_BATCH_GPU = 16_384
"""Keeps a GPU busy, and is small enough that sorting a write batch of the encode job by length saves padding."""
TOKENS_PER_BATCH_CPU = 2048
# Limit of rows x longest row for packed texts, in multiples of the token budget.
_MAX_PADDING = 2
# Minimum length in a group, relative to its longest text.
_SIMILAR = 0.8


def tokens_per_batch(device: torch.device) -> int:
    """Return the default token budget of a batch on a device, padding included."""
    return TOKENS_PER_BATCH_CPU if device.type == "cpu" else TOKENS_PER_BATCH_GPU


def token_batches(lengths: np.ndarray, max_tokens: int, *, packed: bool = False) -> Iterator[np.ndarray]:
    """Yield index arrays of batches of up to `max_tokens` tokens with padding, or of a single longer text.

    The longest texts come first, so that running out of memory shows at once. For packed texts, the budget counts no
    padding, but padded tensors around the pass (ids, states, decoding cache) may have at most twice the budget.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = lengths[order].cumsum()
    start, used = 0, 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        rows = max_tokens // longest
        if packed:
            fitting = int(np.searchsorted(ends, used + max_tokens, side="right")) - start
            rows = min(fitting, _MAX_PADDING * max_tokens // longest)
        rows = max(1, rows)
        yield order[start : start + rows]
        start += rows
        used = int(ends[min(start, len(ends)) - 1])


def similar_lengths(lengths: np.ndarray, min_tokens: int) -> Iterator[np.ndarray]:
    """Yield index arrays of groups whose texts have at least 80 % of the tokens of the group's longest text.

    Groups of fewer than `min_tokens` are filled up with shorter texts, because small passes are not faster.
    """
    order = np.argsort(-lengths, kind="stable")
    descending = -lengths[order]
    start = 0
    while start < len(order):
        longest = max(1, -int(descending[start]))
        similar = int(np.searchsorted(descending, -_SIMILAR * longest, side="right"))
        end = max(similar, start + -(-min_tokens // longest))
        yield order[start:end]
        start = end

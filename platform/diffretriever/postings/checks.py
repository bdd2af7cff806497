"""What impacts must be like, of passages and of queries, so that bounds hold and sums have one order.

Legend: I impacts of some texts.
"""

from __future__ import annotations

import numpy as np


def check_ids(ids_I: np.ndarray, vocab_size: int) -> None:
    """Raise ValueError if an id is outside the vocabulary."""
    if len(ids_I) and not (ids_I.min() >= 0 and ids_I.max() < vocab_size):
        wrong = ids_I.min() if ids_I.min() < 0 else ids_I.max()
        raise ValueError(f"token id {wrong} is outside a vocabulary of {vocab_size}: use the retriever's own tokenizer")


def check_weights(weights_I: np.ndarray, whose: str) -> None:
    """Raise ValueError if a weight is not above 0 and finite, NaN included."""
    if len(weights_I) and not (weights_I.min() > 0 and weights_I.max() < np.inf):
        raise ValueError(f"the weights of {whose} must be above 0 and finite: encode again")


def first_out_of_order(ids_I: np.ndarray, offsets: np.ndarray) -> int | None:
    """Return the first text whose ids do not ascend, or None; text i owns offsets[i] to offsets[i + 1]."""
    ascends_I = np.diff(ids_I, prepend=-1) > 0
    ascends_I[offsets[:-1][np.diff(offsets) > 0]] = True
    return None if ascends_I.all() else int(np.searchsorted(offsets, np.argmin(ascends_I), side="right")) - 1

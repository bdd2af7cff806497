"""Ragged arrays: the values of several texts one after the other, and the offsets where each text's begin and end.

Legend: T texts, C chosen texts, N values of all texts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def offsets_of(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return int64 [T + 1] from the counts [T]; text i owns the values offsets[i] to offsets[i + 1]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def rows_of(offsets: np.ndarray, chosen_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the values of chosen texts are, one text after the other, and the offsets into those.

    Args:
        offsets: int64 [T + 1].
        chosen_C: integers [C], texts in any order.

    Returns:
        int64 [their number of values], and int64 [C + 1].
    """
    counts_C = np.diff(offsets)[chosen_C]
    own_offsets = offsets_of(counts_C)
    return np.repeat(offsets[:-1][chosen_C] - own_offsets[:-1], counts_C) + np.arange(own_offsets[-1]), own_offsets


def any_of_each(flags_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return bool [T]: whether any of a text's own flags (bool [N]) is set."""
    before = offsets_of(flags_N)
    any_T: np.ndarray = before[offsets[1:]] > before[offsets[:-1]]
    return any_T


def within(numbers: np.ndarray, end: int) -> bool:
    """Return whether all whole numbers are from 0 to below `end`."""
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < end)


def runs(offsets: np.ndarray, most: int) -> Iterator[slice]:
    """Cut texts into runs with at most so many values together, or of one text that has more.

    Args:
        offsets: int64 [T + 1].
        most: at least 1.
    """
    first, count = 0, len(offsets) - 1
    while first < count:
        fitting = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        yield slice(first, max(first + 1, fitting))
        first = max(first + 1, fitting)

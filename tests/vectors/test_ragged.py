"""Offsets and rows of ragged arrays against plain loops."""

from __future__ import annotations

import numpy as np

from diffretriever.vectors.representations import any_of_each, offsets_of, rows_of


def test_offsets_are_running_sums() -> None:
    assert offsets_of([]).tolist() == [0]
    assert offsets_of([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets_of(np.array([200, 200], np.uint8)).tolist() == [0, 200, 400], "counts of a byte do not overflow"
    assert offsets_of([1]).dtype == np.int64


def test_rows_of_chosen_texts_in_any_order() -> None:
    offsets = offsets_of([2, 0, 3, 1])
    rows, own_offsets = rows_of(offsets, np.array([2, 1, 0, 2]))
    assert rows.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert own_offsets.tolist() == [0, 3, 3, 5, 8]
    assert rows_of(offsets, np.empty(0, np.int64))[0].tolist() == []


def test_texts_with_a_flag() -> None:
    assert any_of_each(np.array([False, True, False, False]), offsets_of([2, 0, 2])).tolist() == [True, False, False]

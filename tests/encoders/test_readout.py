"""Impacts of logits (Eq. 3), by hand."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch

from diffretriever.encoders.readout import keep_topk, pooled_impacts, quantise


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [("none", [0.128, 0.125, 0.004]), ("trunc100", [12.0, 12.0, 0.0]), ("round100", [13.0, 12.0, 0.0])],
)
def test_quantise(rounding: Literal["none", "trunc100", "round100"], expected: list[float]) -> None:
    values = quantise(np.array([0.128, 0.125, 0.004], dtype=np.float32), rounding)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array(expected, dtype=np.float32))


@pytest.mark.parametrize(
    ("weights", "k", "kept"),
    [([1, 3, 1, 2], 3, [2, 5, 9]), ([1, 3, 1, 2], 4, [2, 5, 7, 9]), ([2, math.nan, 1, 0], 2, [2, 5])],
)
def test_the_heaviest_impacts_are_kept_in_the_order_of_ids(weights: list[float], k: int, kept: list[int]) -> None:
    """Of equal weights the smaller id stays, and NaN is never cut."""
    ids = np.array([2, 5, 7, 9])
    found_ids, found_weights = keep_topk(ids, np.array(weights, np.float32), k)
    assert found_ids.tolist() == kept
    np.testing.assert_array_equal(found_weights, np.array(weights, np.float32)[np.isin(ids, kept)])


def test_impacts_by_hand() -> None:
    """log(1 + ReLU), max-pooled over the slots that a text has, and multiplied by the weights of words."""
    logits = torch.tensor([[[-3.0, math.e - 1], [0.0, 0.0], [9.0, 9.0]]]).repeat(2, 1, 1)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    assert pooled_impacts(logits, valid, None).tolist() == [[0.0, pytest.approx(1.0)], [0.0, 0.0]]
    assert pooled_impacts(logits, valid, torch.tensor([[2.0, 0.5]])).tolist()[0] == [0.0, pytest.approx(0.5)]

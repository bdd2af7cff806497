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


def test_keep_topk_does_not_cut_nan() -> None:
    ids, weights = keep_topk(np.array([3, 5, 9]), np.array([2.0, np.nan, 1.0], np.float32), 2)
    assert ids.tolist() == [3, 5]
    assert np.isnan(weights).tolist() == [False, True]


def test_keep_topk_keeps_the_order_by_id_and_the_smaller_id_of_a_tie() -> None:
    ids, weights = np.array([2, 5, 7, 9]), np.array([1.0, 3.0, 1.0, 2.0])
    kept_ids, kept_weights = keep_topk(ids, weights, 3)
    assert kept_ids.tolist() == [2, 5, 9]
    assert kept_weights.tolist() == [1.0, 3.0, 2.0]
    assert keep_topk(ids, weights, 4)[0].tolist() == ids.tolist()


def test_impacts_by_hand() -> None:
    """log(1 + ReLU), max-pooled over the slots that a text has, and multiplied by the weights of words."""
    logits = torch.tensor([[[-3.0, math.e - 1], [0.0, 0.0], [9.0, 9.0]]]).repeat(2, 1, 1)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    assert pooled_impacts(logits, valid, None).tolist() == [[0.0, pytest.approx(1.0)], [0.0, 0.0]]
    assert pooled_impacts(logits, valid, torch.tensor([[2.0, 0.5]])).tolist()[0] == [0.0, pytest.approx(0.5)]

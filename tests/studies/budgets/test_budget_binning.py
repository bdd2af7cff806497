"""Binned means: every query in one bin, by hand."""

from __future__ import annotations

import numpy as np

from diffretriever.studies.budgets.features import binned_means


def test_bins_of_equal_size_by_hand() -> None:
    features = np.array([4.0, 1.0, 3.0, 2.0, 8.0, 6.0, 7.0, 5.0])
    found = binned_means(features, features**2, most=4)
    assert [(b.n, b.feature, b.mean) for b in found] == [(2, 1.5, 2.5), (2, 3.5, 12.5), (2, 5.5, 30.5), (2, 7.5, 56.5)]
    assert all(b.interval[0] <= b.mean <= b.interval[1] for b in found)

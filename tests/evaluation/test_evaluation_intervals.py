import numpy as np
import pytest

from diffretriever.evaluation.statistics import bootstrap_interval


def test_near_the_normal_interval_for_many_values() -> None:
    values = np.random.default_rng(0).random(2000)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=half / 5)
    assert high == pytest.approx(values.mean() + half, abs=half / 5)


def test_repeatable_and_degenerate() -> None:
    values = [0.0, 1.0, 0.5, 0.25]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval([0.5]) == (0.5, 0.5)
    assert bootstrap_interval([1.0, 1.0, 1.0]) == (1.0, 1.0)

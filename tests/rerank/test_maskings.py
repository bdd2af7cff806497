"""The maskings of the estimators: what they hide, what they weigh, and that Monte Carlo has the right mean.

Legend: L query tokens, S maskings.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest

from diffretriever.rerank.likelihood import maskings
from diffretriever.schemas.rerank import LikelihoodReranker
from diffretriever.schemas.retriever import BackboneConfig

IDS = [7, 3, 7, 11]


def config(estimator: str, **fields: Any) -> LikelihoodReranker:
    place = BackboneConfig(source="minilm")
    return LikelihoodReranker.model_validate({"backbone": place, "estimator": estimator, **fields})


def test_one_pass_hides_everything_once() -> None:
    masks_SL, weights_S = maskings(config("one-pass"), IDS)
    np.testing.assert_array_equal(masks_SL, [[True] * 4])
    np.testing.assert_array_equal(weights_S, [1])


def test_pseudo_likelihood_hides_each_token_alone() -> None:
    masks_SL, weights_S = maskings(config("pseudo-likelihood"), IDS)
    np.testing.assert_array_equal(masks_SL, np.eye(4, dtype=bool))
    np.testing.assert_array_equal(weights_S, [1] * 4)


@pytest.mark.parametrize("length", [1, 2, 5, 40])
@pytest.mark.parametrize("n_samples", [1, 3, 16])
def test_monte_carlo_weighs_every_sample_like_the_whole_query(length: int, n_samples: int) -> None:
    """If all tokens had the same log-probability x, the estimate would be L x, whatever is drawn."""
    masks_SL, weights_S = maskings(config("monte-carlo", n_samples=n_samples), range(length))
    assert masks_SL.any(axis=1).all()
    assert len(np.unique(masks_SL, axis=0)) == len(masks_SL) <= n_samples
    assert (weights_S * masks_SL.sum(axis=1)).sum() == pytest.approx(length)


def test_monte_carlo_spreads_its_ratios() -> None:
    masks_SL, _ = maskings(config("monte-carlo", n_samples=40), range(40))
    assert sorted(masks_SL.sum(axis=1)) == list(range(1, 41))


def test_monte_carlo_depends_on_seed_and_query_only() -> None:
    def drawn(seed: int, ids: list[int]) -> bytes:
        masks_SL, _ = maskings(config("monte-carlo", n_samples=3, seed=seed), ids)
        return masks_SL.tobytes()

    longer = list(range(30))
    assert drawn(0, longer) == drawn(0, list(longer))
    assert drawn(0, longer) != drawn(1, longer)
    assert drawn(0, longer) != drawn(0, longer[::-1])


def test_monte_carlo_has_the_mean_of_the_papers_formula() -> None:
    """Eq. 6 of arXiv 2502.09992, by enumeration: l uniform in 1..L, every l-subset alike, weight L/l."""
    length = len(IDS)
    value = {s: np.sin(1 + sum(3**i for i in s)) for k in range(1, 5) for s in combinations(range(length), k)}
    expected = sum(x / length / comb(length, len(s)) * length / len(s) for s, x in value.items())
    estimates = []
    for seed in range(4000):
        masks_SL, weights_S = maskings(config("monte-carlo", n_samples=2, seed=seed), IDS)
        terms = [value[tuple(np.flatnonzero(mask).tolist())] for mask in masks_SL]
        estimates.append(float((weights_S * terms).sum()))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - expected) < 4 * error
    assert error < 0.05

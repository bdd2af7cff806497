"""Which query tokens are hidden in which forward pass, and what each pass counts: the three likelihood estimators.

Legend: L query tokens, S maskings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.rerank import LikelihoodReranker


def maskings(config: LikelihoodReranker, query_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return masks, bool [S, L], and weights, float64 [S], of a query of at least one token.

    The estimate is the sum over maskings of their weight times the log-probabilities of the tokens they hide.
    """
    length = len(query_ids)
    if config.estimator == "one-pass":
        return np.ones((1, length), bool), np.ones(1)
    if config.estimator == "pseudo-likelihood":
        return np.eye(length, dtype=bool), np.ones(length)
    generator = np.random.default_rng([config.seed, *query_ids])
    return _monte_carlo(length, config.n_samples, generator)


def _monte_carlo(length: int, n_samples: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Hide l of L tokens, l uniform in 1..L, weight L/l (LLaDA, arXiv 2502.09992, Eq. 6).

    The ratios l/L of the samples are spread evenly from one random start, as in LLaDA's own evaluation: each is uniform
    by itself, and together they vary less. Equal maskings are merged, since they would give equal terms.
    """
    ratios_S = (generator.random() + np.arange(n_samples)) / n_samples
    hidden_S = np.minimum((ratios_S * length).astype(int) + 1, length)
    masks_SL = np.zeros((n_samples, length), bool)
    for mask_L, hidden in zip(masks_SL, hidden_S, strict=True):
        mask_L[generator.permutation(length)[:hidden]] = True
    masks_SL, counts_S = np.unique(masks_SL, axis=0, return_counts=True)
    return masks_SL, counts_S / n_samples * length / masks_SL.sum(axis=1)

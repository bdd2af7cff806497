"""Products of halves leave their bound nowhere, and come near enough to it that a smaller one would be wrong."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from diffretriever.scoring import halves
from diffretriever.scoring.halves import DeviceCodes, HalfQueries
from diffretriever.scoring.maxsim import Codes

CPU = torch.device("cpu")


@pytest.mark.parametrize("hidden", [1, 8, 1000])
@pytest.mark.parametrize("length", [1e-6, 1.0, 50.0])
@pytest.mark.parametrize("scale", [1e-8, 1e-5, 0.01, 500.0])
def test_what_halves_take_is_bounded(hidden: int, length: float, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vectors from which the codes took nothing."""
    # Every block has a few passages.
    monkeypatch.setattr(halves, "_CELLS", 20 * (hidden + 5))
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 5, 40)
    counts[7] = 0
    offsets = np.concatenate([[0], np.cumsum(counts)])
    codes_NH = rng.integers(-127, 128, (offsets[-1], hidden), np.int8)
    scales_N = (scale * rng.random(offsets[-1])).astype(np.float32)
    vectors_NH = codes_NH * scales_N[:, None].astype(np.float64)
    lengths_N = np.linalg.norm(vectors_NH, axis=1)
    longest_P = np.array([lengths_N[a:b].max(initial=0) for a, b in pairwise(offsets)])
    codes = DeviceCodes.copy(
        Codes(codes_NH, scales_N, offsets), np.zeros(40, np.float32), longest_P.astype(np.float32), CPU
    )
    query_MH = (length * rng.standard_normal((5, hidden))).astype(np.float32)
    queries = HalfQueries(query_MH, np.array([0, 2, 5]), CPU)
    scores_QP, slack_QP = queries.scores(codes).numpy().astype(np.float64), queries.slack(codes).numpy()
    assert scores_QP.shape == (2, 40)
    assert (scores_QP[:, 7] == -np.inf).all()
    relative = []
    for query, own in enumerate((slice(0, 2), slice(2, 5))):
        for passage, (a, b) in enumerate(pairwise(offsets)):
            if b > a:
                exact = (vectors_NH[a:b] @ query_MH[own].T.astype(np.float64)).max(0).mean()
                relative.append(abs(scores_QP[query, passage] - exact) / slack_QP[query, passage])
    assert 0.01 < max(relative) <= 1

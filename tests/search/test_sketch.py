"""Proposals of sketches against products of mean vectors."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.vectors import MadeUpVectors
from diffretriever.index.table import PassageIndex
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.sketch import CandidateIndex
from tests.search.dense_cases import build_codes

PASSAGES = 1200
MADE = MadeUpVectors(passages=PASSAGES, slots=2, dims=32, spread="clustered")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    """An index of three segments, all sketched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.search.vectors.BLOCK", 500)
        patch.setattr("benchmarks.search.vectors.FRAGMENT", 500)
        index = MADE.write(str(tmp_path_factory.mktemp("sketch") / "index"))
    build_codes(index)
    CandidateIndex.build(index, open_segments(index)[0])
    return index


def by_means(index: PassageIndex) -> np.ndarray:
    """Return the product of every query's mean with every passage's, from the codes of these."""
    found = [segment.codes.means for segment in open_segments(index)[0]]
    means = np.concatenate([means.codes_NH * means.scales_N[:, None] for means in found])
    asked = MADE.queries(5).vectors_MH.astype(np.float32).reshape(5, -1, 32).mean(axis=1)
    products: np.ndarray = asked @ means.T
    return products


@pytest.mark.parametrize("n", [1, 20, 150, PASSAGES])
def test_proposals_are_ranked_by_the_codes_of_means(n: int, made: PassageIndex) -> None:
    candidate_index = CandidateIndex.open(open_segments(made)[0])
    for numbers, products in zip(candidate_index.propose(MADE.queries(5), n), by_means(made), strict=True):
        assert len(numbers) == n
        assert (np.diff(products[numbers]) <= 1e-3).all()
        best = np.argsort(-products)[:n]
        assert len(set(numbers.tolist()) & set(best.tolist())) >= 0.95 * n

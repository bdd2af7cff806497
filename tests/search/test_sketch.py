"""What sketches name, against products of mean vectors that are computed one by one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.vectors import MadeUpVectors
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex, ids_filter
from diffretriever.search.dense.codes import build_codes, open_segments
from diffretriever.search.dense.sketch import CandidateIndex, MeanSketches

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


def kept_of(index: PassageIndex) -> list[MeanSketches]:
    held = [segment.folder.below("sketch").open() for segment in open_segments(index)[0]]
    return [MeanSketches.read(each.folder) for each in held if each is not None]


def test_every_segment_has_its_own(made: PassageIndex) -> None:
    kept = kept_of(made)
    assert [len(each.sketches) for each in kept] == [500, 500, 200]
    for each, segment in zip(kept, open_segments(made)[0], strict=True):
        assert each.fits(segment)
    first, _, last = open_segments(made)[0]
    assert not kept[0].fits(last)
    assert not kept[2].fits(first)


@pytest.mark.parametrize("n", [1, 20, 150, PASSAGES])
def test_of_what_sketches_name_the_best_means_come_first(n: int, made: PassageIndex) -> None:
    candidate_index = CandidateIndex.open(open_segments(made)[0])
    for numbers, products in zip(candidate_index.propose(MADE.queries(5), n), by_means(made), strict=True):
        assert len(numbers) == n
        assert (np.diff(products[numbers]) <= 1e-3).all()
        best = np.argsort(-products)[:n]
        assert len(set(numbers.tolist()) & set(best.tolist())) >= 0.95 * n


def test_what_a_filter_leaves_out_is_not_named(made: PassageIndex) -> None:
    part = IndexPart.filtered(made, ids_filter({f"{number:09d}" for number in range(0, PASSAGES, 40)}))
    candidate_index = CandidateIndex.open(open_segments(part)[0])
    for numbers in candidate_index.propose(MADE.queries(5), 10):
        assert len(numbers) == 10
        assert (numbers % 40 == 0).all()

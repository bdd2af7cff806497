"""Calibration of the number of candidates."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.search.accelerate import accelerate
from diffretriever.search.dense.candidates import (
    CandidateSearch,
    choose_count,
    sample_queries,
)
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.encoded import EncodedSearch
from diffretriever.vectors.representations import Representations
from tests.search.conftest import fill
from tests.search.dense_cases import build_codes, opened, prepare, stream_of, streamed


@pytest.fixture
def own_index(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    return fill(encoder, str(tmp_path / "index"))


def test_a_budget_without_candidates_is_an_error(own_index: PassageIndex) -> None:
    build_codes(own_index)
    with pytest.raises(ValueError, match="needs a candidate index"):
        opened(own_index, search_budget=10)


def test_the_chosen_budget_reaches_its_recall(own_index: PassageIndex, encoder: Encoder) -> None:
    prepare(own_index)
    candidate_index = CandidateIndex.open(open_segments(own_index)[0])
    queries = sample_queries(own_index, encoder, 40)
    exact = streamed(own_index, queries, 10)
    budget, measured = choose_count(candidate_index, queries, exact, list(range(1, 61)), 0.9)
    assert measured >= 0.9
    assert budget < 60
    search = CandidateSearch(candidate_index, [], stream_of(own_index), max(10, budget))
    found = search.search(queries, 10)
    recall = np.mean([len({i for i, _ in a} & {i for i, _ in b}) / 10 for a, b in zip(found, exact, strict=True)])
    assert recall >= measured - 1e-9


@pytest.mark.parametrize("fastest", ["candidates", "codes"])
def test_calibration_keeps_the_exact_scan_unless_candidates_are_faster(
    fastest: str, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fill(encoder, str(tmp_path / "index"))

    def made_up_time(search: EncodedSearch, queries: Representations, k: int) -> float:
        assert (len(queries), k) == (60, 5)
        return 1.0 if search.way == fastest else 2.0

    monkeypatch.setattr("diffretriever.search.accelerate.milliseconds", made_up_time)
    with patch("diffretriever.encoders.load_encoder", lambda *_: encoder):
        done = accelerate(AccelerateJob(index=made.uri, candidates=True, top_k=5, recall=0.3))
    assert done.candidates is not None
    assert done.candidates.milliseconds == 1.0
    made.refresh()
    search = opened(made)
    if fastest == "codes":
        assert done.candidates.search_budget == 60
        assert isinstance(search, CodedScan)
        return
    assert done.candidates.search_budget < 60
    assert isinstance(search, CandidateSearch)


def test_candidates_of_an_empty_index_are_rejected(encoder: Encoder, tmp_path: Path) -> None:
    empty = PassageIndex.create(str(tmp_path / "empty"), manifest_of(encoder))
    with pytest.raises(ValueError, match="has no passages for a candidate index: encode some first"):
        accelerate(AccelerateJob(index=empty.uri, candidates=True))

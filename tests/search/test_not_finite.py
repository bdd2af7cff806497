"""All search methods reject NaN and infinity, and name the passage or query."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from diffretriever.search.searcher import Searcher
from diffretriever.search.sparse import open_sparse
from tests.index.damaged_cases import BAD, NUMBERS, QUERIES, damaged, damaged_index
from tests.search.dense_cases import build_codes, build_postings, opened

NAMED = rf"index contains NaN or infinity for passage '{BAD}'.*--verify"


@pytest.fixture(params=NUMBERS)
def number(request: pytest.FixtureRequest) -> float:
    return NUMBERS[request.param]


@pytest.mark.parametrize("options", [{}, {"score_dtype": "bfloat16-legacy"}])
def test_a_stream_of_vectors_names_the_passage(options: dict[str, object], number: float, tmp_path: Path) -> None:
    search = opened(damaged_index(tmp_path, number), **options)
    assert isinstance(search, StreamingScan)
    with pytest.raises(ValueError, match=NAMED):
        search.search(QUERIES, 10)


def test_building_codes_names_the_passage(number: float, tmp_path: Path) -> None:
    index = damaged_index(tmp_path, number)
    with pytest.raises(ValueError, match=NAMED):
        build_codes(index)
    assert not open_segments(index)[0]


@pytest.mark.parametrize("k", [1, 1000])
def test_a_stream_of_impacts_names_the_passage(k: int, number: float, tmp_path: Path) -> None:
    index = damaged_index(tmp_path, number, "weight")
    with pytest.raises(ValueError, match=NAMED):
        open_sparse(index, SearchOptions(index=index.uri)).search(QUERIES, k)


def test_building_postings_names_the_passage(number: float, tmp_path: Path) -> None:
    index = damaged_index(tmp_path, number, "weight")
    with pytest.raises(ValueError, match=NAMED):
        build_postings(index)


@pytest.mark.parametrize("where", ["vector", "weight"])
def test_verification_names_the_passage(where: str, number: float, tmp_path: Path) -> None:
    found = inspect(damaged_index(tmp_path, number, where), check=True).verification  # type: ignore[arg-type]
    assert found is not None
    kind = "a vector is not finite" if where == "vector" else "an impact's weight is not positive and finite"
    assert [(p.kind, p.total, p.first) for p in found.problems] == [(kind, 1, [BAD])]


def test_a_query_encoded_as_nan_is_named(number: float, index: PassageIndex, encoder: Encoder) -> None:
    good = encoder.encode
    with patch.object(encoder, "encode", lambda texts: damaged(good(texts), 1, number, "vector")):
        searcher = Searcher(index, SearchOptions(index=index.uri), encoder)
        with pytest.raises(ValueError, match=r"query number 1 \('wing'\) is encoded as NaN"):
            searcher.search(["heat", "wing"])

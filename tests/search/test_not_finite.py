"""NaN or infinity, in a stored passage or in a query, is refused alike by all ways to search, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from diffretriever.codecs.product import codec_from_bytes
from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_of
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.codes import build_codes, open_segments
from diffretriever.search.dense.compressed import CompressedScan
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from diffretriever.search.neural import NeuralSearcher
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.postings import build_postings
from tests.index.compressed_cases import compressed, fill
from tests.index.damaged_cases import BAD, NUMBERS, QUERIES, damaged, damaged_index
from tests.search.dense_cases import CPU, opened, prepare

NAMED = rf"index holds NaN or infinity for passage '{BAD}'.*--verify"


@pytest.fixture(params=NUMBERS)
def number(request: pytest.FixtureRequest) -> float:
    return NUMBERS[request.param]


def unchecked(uri: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def with_old_codes(index: PassageIndex) -> PassageIndex:
    """Codes as they were made before such vectors were refused."""
    with patch("diffretriever.search.dense.codes.finite_rows", unchecked), np.errstate(all="ignore"):
        build_codes(index)
    return index


@pytest.mark.parametrize(
    "options", [{}, {"memory_mb": 1}, {"maxsim": "sum-floored"}, {"score_dtype": "bfloat16-legacy"}]
)
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_a_stream_of_vectors(options: dict[str, object], k: int, number: float, tmp_path: Path) -> None:
    search = opened(damaged_index(tmp_path, number), **options)
    assert isinstance(search, StreamingScan)
    with pytest.raises(ValueError, match=NAMED):
        search.search(QUERIES, k)


def test_no_codes_are_made(number: float, tmp_path: Path) -> None:
    index = damaged_index(tmp_path, number)
    with pytest.raises(ValueError, match=NAMED):
        build_codes(index)
    assert not open_segments(index)[0]


@pytest.mark.parametrize("queries", [1, 6])
def test_codes_of_an_older_index(queries: int, number: float, tmp_path: Path) -> None:
    search = opened(with_old_codes(damaged_index(tmp_path, number)))
    assert isinstance(search, CodedScan)
    with pytest.raises(ValueError, match=NAMED):
        search.search(QUERIES.take(np.arange(queries)), 10)


def test_candidates_of_an_older_index(number: float, tmp_path: Path) -> None:
    index = with_old_codes(damaged_index(tmp_path, number))
    with pytest.raises(ValueError, match=NAMED):
        CandidateIndex.build(index, open_segments(index)[0])


def test_a_fragment_that_candidates_do_not_know(number: float, tmp_path: Path) -> None:
    index = prepare(fill(str(tmp_path / "sound"), 60))
    search = opened(index)
    assert isinstance(search, CandidateSearch)
    bad = damaged_index(tmp_path, number)
    stream = StreamingScan(bad, SearchOptions(index=""), CPU, 3)
    unknown = CandidateSearch(search.candidate_index, bad.fragments(), stream, 30)
    with pytest.raises(ValueError, match=NAMED):
        unknown.search(QUERIES, 10)


def test_no_compressed_index_is_made(number: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=NAMED):
        compressed(damaged_index(tmp_path, number), "product2")


@pytest.mark.parametrize("name", ["centre", "codewords"])
def test_a_codec_that_decodes_to_no_number(name: str, number: float, tmp_path: Path) -> None:
    index = compressed(fill(str(tmp_path / "index"), 60), "product2")
    codec = codec_of(index.uri, index.manifest)
    assert isinstance(opened(index), CompressedScan)
    arrays = {**codec.arrays, name: np.full_like(codec.arrays[name], number)}
    with pytest.raises(ValueError, match=f"'{name}' holds NaN or infinity"):
        codec_from_bytes(type(codec)(codec.config.bits, arrays).to_bytes())


@pytest.mark.parametrize("k", [1, 1000])
def test_a_stream_of_impacts(k: int, number: float, tmp_path: Path) -> None:
    index = damaged_index(tmp_path, number, "weight")
    with pytest.raises(ValueError, match=NAMED):
        open_sparse(index, SearchOptions(index=index.uri)).search(QUERIES, k)


def test_no_postings_are_made(number: float, tmp_path: Path) -> None:
    index = damaged_index(tmp_path, number, "weight")
    with pytest.raises(ValueError, match=NAMED):
        build_postings(index)


def test_without_the_passage_all_is_found(number: float, tmp_path: Path) -> None:
    index = with_old_codes(damaged_index(tmp_path, number))
    index.delete([BAD])
    assert [len(hits) for hits in opened(index).search(QUERIES, 1000)] == [100] * 6
    assert inspect(index, check=True).verification.problems == []  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["vector", "weight"])
def test_the_check_of_an_index_names_it(where: str, number: float, tmp_path: Path) -> None:
    found = inspect(damaged_index(tmp_path, number, where), check=True).verification  # type: ignore[arg-type]
    assert found is not None
    kind = "a vector is not finite" if where == "vector" else "an impact's weight is not positive and finite"
    assert [(p.kind, p.total, p.first) for p in found.problems] == [(kind, 1, [BAD])]


WAYS: dict[str, Callable[[PassageIndex], object]] = {
    "stream": opened,
    "codes": lambda index: build_codes(index) and opened(index),
    "candidates": lambda index: opened(prepare(index)),
    "compressed": lambda index: opened(compressed(index, "product2")),
    "impacts": lambda index: open_sparse(index, SearchOptions(index=index.uri)),
    "postings": lambda index: build_postings(index) and open_sparse(index, SearchOptions(index=index.uri)),
}


@pytest.mark.parametrize("where", ["vector", "weight"])
@pytest.mark.parametrize("way", WAYS)
def test_a_query(way: str, where: str, number: float, tmp_path: Path) -> None:
    search = WAYS[way](fill(str(tmp_path / "index"), 60))
    with pytest.raises(ValueError, match="query number 2 is encoded as NaN or infinity"):
        search.search(damaged(QUERIES, 2, number, where), 10)  # type: ignore[attr-defined, arg-type]


def test_a_query_is_named_by_its_text(number: float, index: PassageIndex, encoder: Encoder) -> None:
    good = encoder.encode
    with patch.object(encoder, "encode", lambda texts: damaged(good(texts), 1, number, "vector")):
        searcher = NeuralSearcher(index, encoder, SearchOptions(index=index.uri))
        with pytest.raises(ValueError, match=r"query number 1 \('wing'\) is encoded as NaN"):
            searcher.search(["heat", "wing"])

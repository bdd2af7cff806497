"""Search by postings equals the stream."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.postings import PostingsSearch, StreamingImpacts
from tests.search.dense_cases import build_postings
from tests.search.sparse_cases import (
    BACKBONE,
    VOCAB,
    Bag,
    Model,
    bags,
    manifest,
    representations,
)

MODEL: Model = {f"d{n * 37 % 1000:03}": bag for n, bag in enumerate(bags(180, seed=10))}


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    """Three fragments."""
    retriever = MaskedRetriever.model_validate({"backbone": BACKBONE, "budget": "q1p1"})
    made, items = PassageIndex.create(str(tmp_path / "index"), manifest(retriever, VOCAB)), list(MODEL.items())
    for first in (0, 60, 120):
        write(
            made, dict(items[first : first + 60]), representations(dict(items[first : first + 60]).values()).to_arrow()
        )
    return made


def write(index: PassageIndex, passages: Model, encoded: pa.Table) -> None:
    table = text_table([Passage(i, "", f"text {bag}") for i, bag in passages.items()], "c")
    Committer(index).commit({"key": write_block(index.uri, join_columns(table, encoded))}, [])


@pytest.mark.parametrize(
    ("bag", "message"),
    [({VOCAB: 1.0}, f"token id {VOCAB} is outside"), ({-1: 1.0}, "token id -1"), ({1: 0.0}, "above 0 and finite")],
)
def test_invalid_sparse_queries_are_rejected(bag: Bag, message: str, index: PassageIndex) -> None:
    build_postings(index)
    with pytest.raises(ValueError, match=message):
        open_sparse(index, SearchOptions(index=index.uri)).search(representations([bag]), 5)


def test_postings_equal_the_stream_with_threads_and_batches(
    index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_postings(index)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    monkeypatch.setattr("diffretriever.search.sparse.postings._QUERIES_AT_ONCE", 4)
    # Of the last: nothing, a term of no passage, and one of no passage next to one of some.
    queries = representations([*bags(12, seed=1), {}, {VOCAB - 1: 1.0}, {VOCAB - 2: 2.0, 3: 0.5}])
    stream = StreamingImpacts(index, 1)
    search = open_sparse(index, SearchOptions(index=index.uri))
    assert isinstance(search, PostingsSearch)
    assert search.search(queries, 7) == stream.search(queries, 7)


def test_building_postings_rejects_invalid_impacts(index: PassageIndex) -> None:
    wrong = representations([{1: 1.0}]).to_arrow()
    column = wrong.schema.get_field_index("impact_weights")
    weights = pa.array([[-1.0]], wrong.schema.field(column).type)
    wrong = wrong.set_column(column, wrong.field(column), weights)
    write(index, {"bad": {}}, wrong)
    with pytest.raises(ValueError, match=r"above 0 and finite.*--verify. names the passages"):
        build_postings(index)

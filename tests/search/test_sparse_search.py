"""Every sparse search finds what brute force finds, through every change of the table, ties and last bits included."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, beside, text_table, write_block
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.encoded import EncodedSearch
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.postings import (
    PostingsSearch,
    build_postings,
    open_inverted,
)
from diffretriever.search.sparse.stream import StreamingImpacts
from tests.search.sparse_cases import (
    ENCODED_QUERIES,
    VOCAB,
    Bag,
    Life,
    Model,
    bags,
    brute_force,
    passages,
    representations,
)

Opener: TypeAlias = Callable[[PassageIndex], EncodedSearch]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    made = Life(tmp_path)
    for number, first in enumerate((0, 60, 120)):
        made.write(passages(first, 60, seed=10 + number))
    return made


def streamed(index: PassageIndex) -> EncodedSearch:
    return StreamingImpacts(index, 1)


def with_new_postings(index: PassageIndex) -> EncodedSearch:
    build_postings(index)
    return opened(index, PostingsSearch)


def as_it_is(index: PassageIndex) -> EncodedSearch:
    return opened(index, PostingsSearch)


def opened(index: PassageIndex, expected: type[EncodedSearch]) -> EncodedSearch:
    search = open_sparse(index, SearchOptions(index=index.uri))
    assert isinstance(search, expected)
    return search


def check(life: Life, open_search: Opener, index: PassageIndex | None = None, model: Model | None = None) -> None:
    search = open_search(index or life.index)
    for k in (1, 7, 1000):
        assert search.search(ENCODED_QUERIES, k) == brute_force(life.model if model is None else model, k)


@pytest.mark.parametrize("open_search", [streamed, as_it_is, with_new_postings])
def test_the_same_hits_through_every_change(life: Life, open_search: Opener) -> None:
    build_postings(life.index)
    check(life, open_search)
    life.delete([*list(life.model)[3:40], list(life.model)[70]])
    check(life, open_search)
    life.write(passages(500, 50, seed=20))
    check(life, open_search)
    replaced = list(life.model)[::5]
    life.write(dict(zip(replaced, bags(len(replaced), seed=21), strict=True)))
    check(life, open_search)
    life.index.compact()
    check(life, with_new_postings if open_search is as_it_is else open_search)


@pytest.mark.parametrize(
    ("bag", "message"),
    [({VOCAB: 1.0}, f"token id {VOCAB} is outside"), ({-1: 1.0}, "token id -1"), ({1: 0.0}, "above 0 and finite")],
)
def test_queries_that_are_refused(bag: Bag, message: str, life: Life) -> None:
    with pytest.raises(ValueError, match=message):
        with_new_postings(life.index).search(representations([bag]), 5)


def test_threads_and_portions_make_no_difference(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    build_postings(life.index)
    segments, without = open_inverted(life.index)
    assert (len(segments), without) == (3, [])
    monkeypatch.setattr("diffretriever.search.sparse.postings._QUERIES_AT_ONCE", 4)
    search = PostingsSearch(segments, [], StreamingImpacts(life.index, 1), 3)
    assert search.search(ENCODED_QUERIES, 7) == brute_force(life.model, 7)


def test_postings_made_after_a_deletion_hide_nothing_from_a_reader_opened_before(life: Life) -> None:
    before, model = PassageIndex.open(life.index.uri), life.model
    life.delete(list(life.model)[:70])
    build_postings(life.index)
    check(life, as_it_is)
    check(life, as_it_is, before, model)
    assert len(open_inverted(before)[1]) == 2, "the first has none, those of the second lack rows"
    life.index.compact(timedelta(0))
    assert opened(life.index, StreamingImpacts).search(ENCODED_QUERIES, 7) == brute_force(life.model, 7)


def test_impacts_that_are_not_sound_are_refused(life: Life) -> None:
    wrong = representations([{1: 1.0}]).to_arrow()
    column = wrong.schema.get_field_index("impact_weights")
    weights = pa.array([[-1.0]], wrong.schema.field(column).type)
    wrong = wrong.set_column(column, wrong.field(column), weights)
    table = beside(text_table([Passage("bad", "", "text")], "c"), wrong)
    Committer(life.index).commit({"key": write_block(life.index.uri, table)}, [])
    with pytest.raises(ValueError, match=r"above 0 and finite.*--verify. names the passages"):
        build_postings(life.index)

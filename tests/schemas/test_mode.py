"""Modes: one text for each sum of lists, and what a retriever's indexes offer."""

from __future__ import annotations

from itertools import permutations

import pytest
from pydantic import TypeAdapter, ValidationError

from diffretriever.schemas.mode import Mode, lists_of, mode_of, modes_of, parse_mode
from diffretriever.schemas.retriever import Bm25Retriever, MaskedRetriever, PooledRetriever
from diffretriever.schemas.search import SearchJob

ALL = ("dense", "sparse", "bm25", "hybrid", "dense+bm25", "sparse+bm25", "dense+sparse+bm25")


def test_every_mode_has_one_text() -> None:
    assert modes_of(("bm25", "dense", "sparse")) == ALL
    for mode in ALL:
        assert parse_mode(mode) == mode == mode_of(lists_of(mode))
        for lists in permutations(lists_of(mode)):
            assert parse_mode("+".join(lists)) == mode


def test_hybrid_is_the_papers() -> None:
    assert lists_of("hybrid") == ("dense", "sparse")
    assert SearchJob(index="i", query="q", mode="sparse+dense").mode == "hybrid"


@pytest.mark.parametrize("text", ["", "lexical", "dense+dense", "dense+", "hybrid+bm25", "Dense", "dense bm25"])
def test_what_is_no_mode(text: str) -> None:
    with pytest.raises(ValidationError, match=r"is no score to rank by\. (Did you mean|Known: bm25, dense)"):
        SearchJob(index="i", query="q", mode=text)


def test_requests_are_described_by_all_modes() -> None:
    assert TypeAdapter(Mode).json_schema()["enum"] == [*ALL]


def test_what_indexes_offer() -> None:
    backbone = {"source": "x"}
    assert MaskedRetriever.model_validate({"backbone": backbone}).offered_modes == ALL
    assert PooledRetriever.model_validate({"backbone": backbone}).offered_modes == ("dense", "bm25", "dense+bm25")
    assert Bm25Retriever().offered_modes == ("sparse", "bm25")

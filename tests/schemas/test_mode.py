"""Scoring modes: parsing, weights, and the modes of a retriever."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from pydantic import TypeAdapter, ValidationError

from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.mode import Mode, lists_of, mode_of, modes_of, parse_mode, unweighted, weights_of
from diffretriever.schemas.retriever import Bm25Retriever, MaskedRetriever, PooledRetriever
from diffretriever.schemas.search import SearchJob

UNKNOWN = ("", "lexical", "dense+dense", "dense+", "hybrid+bm25", "Dense", "dense bm25")
UNKNOWN_WEIGHTED = (".dense+bm25", "-1dense+bm25", "1e5dense+bm25", "dense+0.3hybrid")
ALL = ("dense", "sparse", "bm25", "hybrid", "dense+bm25", "sparse+bm25", "dense+sparse+bm25")


def test_each_mode_has_one_canonical_text() -> None:
    assert modes_of(("bm25", "dense", "sparse")) == ALL
    for mode in ALL:
        assert parse_mode(mode) == mode == mode_of(lists_of(mode))
        for lists in permutations(lists_of(mode)):
            assert parse_mode("+".join(lists)) == mode
    assert lists_of("hybrid") == ("dense", "sparse")


@pytest.mark.parametrize(
    ("text", "mode", "lists", "weights"),
    [
        ("dense+0.3bm25", "dense+0.3bm25", ("dense", "bm25"), (1.0, 0.3)),
        (".30bm25+1.0dense", "dense+0.3bm25", ("dense", "bm25"), (1.0, 0.3)),
        ("2sparse+dense", "dense+2sparse", ("dense", "sparse"), (1.0, 2.0)),
        ("1dense+bm25", "1dense+1bm25", ("dense", "bm25"), (1.0, 1.0)),
        ("0.7dense+.2sparse+.1bm25", "0.7dense+0.2sparse+0.1bm25", ("dense", "sparse", "bm25"), (0.7, 0.2, 0.1)),
        ("dense+0.0000100bm25", "dense+0.00001bm25", ("dense", "bm25"), (1.0, 0.00001)),
        ("dense+2000000bm25", "dense+2000000bm25", ("dense", "bm25"), (1.0, 2e6)),
        ("dense+1.0000001bm25", "dense+1.0000001bm25", ("dense", "bm25"), (1.0, 1.0000001)),
    ],
)
def test_modes_with_weights(text: str, mode: Mode, lists: tuple[str, ...], weights: tuple[float, ...]) -> None:
    assert parse_mode(text) == parse_mode(mode) == mode
    assert lists_of(text) == lists
    assert weights_of(text) == weights
    assert unweighted(text) == mode_of(lists)
    assert re.match(TypeAdapter(Mode).json_schema()["anyOf"][1]["pattern"], mode)


@pytest.mark.parametrize("text", ["2dense", "0dense+bm25", "dense+0.0bm25", f"dense+{'9' * 400}bm25"])
def test_invalid_weights_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="numbers are weights above 0 in a sum of several lists"):
        parse_mode(text)


@pytest.mark.parametrize("text", [*UNKNOWN, *UNKNOWN_WEIGHTED])
def test_unknown_modes_are_rejected(text: str) -> None:
    with pytest.raises(ValidationError, match=r"unknown scoring mode '.*'\. (Did you mean|Known: bm25, dense)"):
        SearchJob(index="i", query="q", mode=text)


def test_modes_of_a_retriever() -> None:
    fields = {"backbone": {"source": "x"}}
    masked = MaskedRetriever.model_validate(fields)
    assert (masked.offered_modes, masked.ranked_by) == (ALL, "hybrid")
    assert Bm25Retriever().offered_modes == ("sparse", "bm25")
    pooled = PooledRetriever.model_validate({**fields, "default_mode": "0.3bm25+dense"})
    assert pooled.offered_modes == ("dense", "bm25", "dense+bm25")
    assert pooled.ranked_by == "dense+0.3bm25"
    assert pooled.reported_modes == ("dense", "dense+0.3bm25")
    with pytest.raises(ValidationError, match="default_mode: this retriever has no sparse scores"):
        PooledRetriever.model_validate({**fields, "default_mode": "sparse"})


def test_query_time_defaults_are_not_in_the_fingerprint() -> None:
    masked = MaskedRetriever.model_validate({"backbone": {"source": "x"}})
    changed = masked.model_copy(update={"default_selector": "fixed:4", "default_mode": "dense"})
    assert len({IndexManifest(retriever=each, created="today").fingerprint for each in (masked, changed)}) == 1

"""Parsing of records: cleaning, ids from contents, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diffretriever.collections.records import Passage, RefusedError
from diffretriever.training.data.examples import (
    example_from_fields,
    example_from_json,
    example_from_tsv,
    passage_key,
    text_key,
)
from tests.training.example_cases import examples, tevatron

GOOD: dict[str, Any] = {"query_id": "q", "query": "why", "positive_passages": [{"docid": "a", "text": "because"}]}


def test_tevatrons_layout_is_read() -> None:
    for example in examples(5):
        found = example_from_json(json.dumps(tevatron(example)))
        assert found.example == example
        assert found.repeated == 0


def test_plain_texts_get_ids_from_their_contents() -> None:
    first = example_from_json('{"query": "why", "positive": "because", "negatives": ["no", "never"]}').example
    assert (first.query, first.positives[0].text, first.positives[0].title) == ("why", "because", "")
    assert [p.text for p in first.negatives] == ["no", "never"]
    listed = example_from_json('{"query": "why", "positives": ["because"], "negatives": ["no", "never"]}').example
    assert first == listed == example_from_tsv("why\tbecause\tno\tnever").example
    other = example_from_tsv("why\tso\tno").example
    assert other.negatives[0] == first.negatives[0]
    assert other.query_id != first.query_id, "one query asked of two positives is two examples"


def test_a_single_negative_is_read_and_harmless_fields_are_passed_over() -> None:
    triplet = {"query": "why", "positive": "because", "negative": "no"}
    found = example_from_fields(triplet | {"source": "nq", "score": 1.0, "position": "first", "num_negatives": 1})
    assert found == example_from_fields({"query": "why", "positives": ["because"], "negatives": ["no"]})


def test_repeated_passages_are_left_out() -> None:
    """By id, by text in another case, and positives among the negatives."""
    fields = {
        "query": "q",
        "positives": [
            {"docid": "a", "text": "One Text"},
            {"docid": "a", "text": "another"},
            {"docid": "b", "text": "two"},
        ],
        "negatives": [
            {"docid": "c", "text": "one  text", "title": "of another title"},
            {"docid": "d", "text": "three"},
            {"docid": "b", "text": "four"},
            {"docid": "e", "text": "THREE"},
        ],
    }
    found = example_from_fields(fields)
    assert [p.id for p in found.example.positives] == ["a", "b"]
    assert [p.id for p in found.example.negatives] == ["d"]
    assert found.repeated == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"query": None}, "no query field"),
        ({"query": 3}, "wrong type: 'query'"),
        ({"query": " "}, "empty query"),
        ({"query_id": "a b"}, "bad id"),
        ({"positive_passages": []}, "no positive"),
        ({"positive_passages": [{"docid": "a"}]}, r"no text field.*positive_passages\[0\]"),
        ({"positive_passages": [{"docid": "a", "text": "\ud800"}]}, r"lone surrogate.*positive_passages\[0\]"),
        ({"negative_passages": ["x", 3]}, r"wrong type.*negative_passages\[1\]"),
        ({"negative_passages": [{"docid": "a\n", "text": "x"}]}, r"bad id.*negative_passages\[0\]"),
        ({"hard_negatives": ["no"]}, "unknown field: 'hard_negatives'"),
        ({"negative_1": "no"}, "unknown field: 'negative_1'"),
        ({"neg": ["no"]}, "unknown field: 'neg'"),
        ({"negatives": ["no"], "negative": "never"}, "unknown field: 'negative'"),
        ({"pos_scores": [1.0]}, "unknown field: 'pos_scores'"),
    ],
)
def test_an_invalid_record_names_its_field(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        example_from_fields(GOOD | changes)


@pytest.mark.parametrize(("line", "reason"), [("{", "malformed JSON"), ("[]", "not an object"), ("[" * 99999, "JSON")])
def test_lines_that_cannot_be_read(line: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        example_from_json(line)
    with pytest.raises(RefusedError, match="wrong column count"):
        example_from_tsv(line)


def test_texts_are_the_same_whatever_their_case_and_spaces() -> None:
    assert text_key("Ein  STRASSE\u00a0\n") == text_key("ein straße") != text_key("ein strasse x")
    assert passage_key(Passage("a", "t", " ")) == passage_key(Passage("b", "", "T"))
    assert passage_key(Passage("a", "t", "x")) == passage_key(Passage("b", "", "x"))

"""Samples of collections, which the embedded model is developed on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffretriever.collections import Passage, open_collection
from tests.training.made_up_collection import write_collection
from tools.sample_collection import SampleCollection
from tools.sample_collection import main as sample


def test_a_sample_of_long_queries_asks_for_halves_of_passages(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(120)]
    lines = [{"_id": "long", "title": "", "text": " ".join(words)}, {"_id": "short", "title": "", "text": "word1"}]
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sample(
        SampleCollection(
            collection=str(tmp_path / "whole"), split="dev", halves=True, passages=2, output=tmp_path / "halves"
        )
    )
    found = open_collection(str(tmp_path / "halves"))
    assert [(query.id, query.text.split()) for query in found.queries("dev")] == [("long", words[60:])]
    assert found.qrels("dev") == {"long": {"long": 1}}
    texts = {record.id: record.text for record in found.records() if isinstance(record, Passage)}
    assert texts == {"long": " ".join(words[:60]), "short": "word1"}


def test_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "whole").mkdir()
    whole = open_collection(str(write_collection(tmp_path / "whole")))
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        sample(
            SampleCollection(
                collection=str(tmp_path / "whole"),
                split="test",
                queries=2,
                passages=5,
                seed=seed,
                output=tmp_path / name,
            )
        )
    first, again, other = (open_collection(str(tmp_path / name)) for name in ("first", "again", "other"))
    assert "2 queries" in capsys.readouterr().out
    qrels = first.qrels("test")
    assert len(qrels) == 2
    assert all(qrels[query] == whole.qrels("test")[query] for query in qrels)
    passages = {record.id: record for record in first.records()}  # type: ignore[union-attr]
    assert len(passages) >= 5
    assert all(passage in passages for judged in qrels.values() for passage in judged)
    assert passages == {record.id: record for record in again.records()}  # type: ignore[union-attr]
    assert passages != {record.id: record for record in other.records()}  # type: ignore[union-attr]

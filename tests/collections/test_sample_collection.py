"""tools/sample_collection.py: the same settings take the same texts; halves of passages make long queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.collections import open_collection
from tests.training.made_up_collection import write_collection
from tools.sample_collection import SampleCollection
from tools.sample_collection import main as sample


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

"""benchmarks.precision in a tiny form."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.precision import loops
from benchmarks.precision.__main__ import PrecisionBenchmark, _cosines, _write_part
from diffretriever.collections import open_collection
from diffretriever.collections.beir import write_beir_folder
from diffretriever.collections.records import Passage, Query
from tests.encoders.encoder_cases import WORDS, FolderOf


def test_the_same_part_in_two_precisions(folder_of: FolderOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole").mkdir()
    passages = [Passage(f"d{number}", "", f"{word} in {WORDS[number - 1]}") for number, word in enumerate(WORDS)]
    queries = [Query(f"q{number}", word) for number, word in enumerate(WORDS)]
    qrels = {f"q{number}": {f"d{number}": 1} for number in range(len(WORDS))}
    write_beir_folder(tmp_path / "whole", passages, queries, {"test": qrels})
    config = PrecisionBenchmark(collection="whole", queries=3, passages=5)
    (tmp_path / "part").mkdir()
    _write_part(config, tmp_path / "part")
    part = open_collection(str(tmp_path / "part"))
    assert len(part.queries("test")) == 3
    kept = {record.id for record in part.records() if isinstance(record, Passage)}
    assert len(kept) == 5
    assert {passage_id for judged in part.qrels("test").values() for passage_id in judged} <= kept

    retriever = tmp_path / "retriever.yaml"
    retriever.write_text(yaml.safe_dump({"method": "pooled", "backbone": {"source": str(folder_of("dream"))}}))
    for dtype in ("float32", "float8"):
        found = loops.measure(str(retriever), dtype, str(tmp_path / "part"), "cpu", str(tmp_path))
        assert 0 <= found["measure"] <= 1
    assert _cosines(tmp_path, "float32", "float32")["least_cosine"] == pytest.approx(1)
    assert 0.98 < _cosines(tmp_path, "float32", "float8")["least_cosine"] < 0.99999

"""Small corpora for the pipeline's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from diffretriever.schemas.encode import EncodeJob

JobMaker = Callable[..., EncodeJob]

WORDS = [
    "slot",
    "passage",
    "query",
    "index",
    "vector",
    "masked",
    "corpus",
    "budget",
    "shard",
    "actor",
    "lance",
    "table",
    "commit",
]


def line(number: int, text: str | None = None) -> str:
    """Return one corpus line; texts differ in length so that batches are padded."""
    words = [WORDS[(number * 7 + i) % len(WORDS)] for i in range(5 + number % 40)]
    return json.dumps({"_id": f"p{number}", "title": f"title {number}", "text": text or " ".join(words)})


def write_corpus(folder: Path, lines: list[str]) -> Path:
    """Write a BEIR folder without queries."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "masked slot"}\n', encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n", encoding="utf-8")
    return folder

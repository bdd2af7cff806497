"""Training files and a BEIR folder over the words of the random checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from diffretriever.schemas.training_data import PrepareTrainingJob
from tests.training.example_cases import prepared
from tests.training.trainer_cases import text_of, topic

PASSAGES = 40
QUERIES = 20


def write_collection(folder: Path) -> Path:
    """Write a BEIR collection whose queries ask for the words of one passage each."""
    corpus = [{"_id": f"d{row}", "title": "", "text": text_of(row)} for row in range(PASSAGES)]
    queries = [{"_id": f"q{row}", "text": " ".join(topic(row))} for row in range(QUERIES)]
    (folder / "qrels").mkdir()
    _write(folder / "corpus.jsonl", corpus)
    _write(folder / "queries.jsonl", queries)
    judged = "".join(f"q{row}\td{row}\t1\n" for row in range(QUERIES))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", "utf-8")
    return folder


def write_training_data(folder: Path, size: int) -> Path:
    """Write a training set of records in Tevatron's layout."""
    records = [
        {
            "query_id": f"t{row}",
            "query": " ".join(topic(row)),
            "positive_passages": [_passage(row, 0)],
            "negative_passages": [_passage(row, 1), _passage(row, 2)],
        }
        for row in range(size)
    ]
    _write(folder / "train.jsonl", records)
    output = folder / "training-set"
    prepared(PrepareTrainingJob(source=(str(folder / "train.jsonl"),), output=output))
    return output


def _passage(row: int, number: int) -> dict[str, str]:
    return {"docid": f"p{row}-{number}", "title": "", "text": f"{text_of(row + 5 * number)}, number {row}"}


def _write(file: Path, records: Sequence[Mapping[str, object]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")

"""A query's own document is left out where the collection says so, not where ids happen to be equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.schemas.evaluate import EvaluateJob


def collection(folder: Path) -> Path:
    """Queries and passages numbered from 1, as Cranfield's are."""
    (folder / "qrels").mkdir(parents=True)
    rows = {"corpus": {"title": "", "text": "a text"}, "queries": {"text": "a question"}}
    for name, fields in rows.items():
        lines = [json.dumps({"_id": number, **fields}) for number in ("1", "2")]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n2\t1\t1\n", "utf-8")
    return folder


def reciprocal_rank(folder: Path, exclude_self: bool | None = None) -> float:
    run = folder / "found.trec"
    run.write_text("1 Q0 1 1 2.0 x\n1 Q0 2 2 1.0 x\n2 Q0 2 1 2.0 x\n2 Q0 1 2 1.0 x\n", "utf-8")
    job = EvaluateJob(
        run=run, collection=str(folder), output=folder / "out", measures=("MRR@10",), exclude_self=exclude_self
    )
    return evaluate_job(job, "c")["run"].mean["MRR@10"]


@pytest.mark.parametrize(("name", "expected"), [("cranfield", 0.75), ("arguana", 0.5), ("quora", 0.5)])
def test_the_collection_decides(tmp_path: Path, name: str, expected: float) -> None:
    assert reciprocal_rank(collection(tmp_path / name)) == expected


def test_the_flag_wins(tmp_path: Path) -> None:
    assert reciprocal_rank(collection(tmp_path / "cranfield"), exclude_self=True) == 0.5
    assert reciprocal_rank(collection(tmp_path / "arguana"), exclude_self=False) == 0.75
    flags = ["--run", "run.trec", "--qrels", "qrels", "--output", "out"]
    asked = [EvaluateJob.from_command_line([*flags, *more]).exclude_self for more in ([], ["--no-exclude-self"])]
    assert asked == [None, False]

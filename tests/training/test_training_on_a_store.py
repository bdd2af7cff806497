"""Training sets and metrics on an object store."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest

from diffretriever.core.files import files_in, read_bytes, read_text, remove, write_bytes
from diffretriever.pipelines.training_data import finished, open_inputs
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.training.data.training_set import EXAMPLES_FILE, MANIFEST_FILE, TrainingSet
from diffretriever.training.run_folder import METRICS_FILE, MetricsLog
from tests.training.example_cases import examples, jsonl, prepared, tevatron

MANY = examples(20)


@pytest.fixture
def output(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorePath:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    return StorePath(f"{bucket}/a folder/out")


def prepare_job(tmp_path: Path, output: StorePath) -> PrepareTrainingJob:
    (tmp_path / "train.jsonl").write_text(jsonl(map(tevatron, MANY)), "utf-8")
    return PrepareTrainingJob(source=(str(tmp_path / "train.jsonl"),), output=output, on_bad_input="quarantine")


def test_a_set_is_uploaded_whole_and_fetched_once(output: StorePath, tmp_path: Path) -> None:
    job = prepare_job(tmp_path, output)
    made, alone = prepared(job), prepared(job.model_copy(update={"output": tmp_path / "alone"}))
    assert made.digest == alone.digest
    assert [made.example(row) for row in range(len(made))] == MANY
    names = {MANIFEST_FILE, EXAMPLES_FILE, "quarantine.jsonl"}
    assert {info.base_name for info in files_in(output)} == names
    assert finished(job, open_inputs(job)) == made.manifest
    with patch("diffretriever.core.files.fetch_file", side_effect=AssertionError("fetched twice")):
        again = pickle.loads(pickle.dumps(made))
    assert again.example(3) == MANY[3]
    assert again.folder == made.folder
    remove(tmp_path / "cache")
    write_bytes(output / EXAMPLES_FILE, b"short")
    with pytest.raises(ValueError, match=f"{EXAMPLES_FILE}: missing or truncated"):
        TrainingSet.open(str(output))


def test_the_metrics_log_resumes_on_another_machine(output: StorePath) -> None:
    def course(*steps: int) -> None:
        with MetricsLog(output, "masked", 4, 2) as journal:
            for step in steps:
                journal.add({"step": step, "loss": 1.0, "accuracy": 0.5, "tokens_per_second": 9.0, "utilisation": 0.1})
                seen = read_bytes(output / METRICS_FILE).count(b"\n") if step > 1 else 0
                assert seen >= step - step % 2, "they are there at each checkpoint"

    course(1, 2, 3)
    course(3, 4)
    lines = [json.loads(line)["step"] for line in read_text(output / METRICS_FILE).splitlines()]
    assert lines == [1, 2, 3, 3, 4]
    assert len(files_in(output / "tensorboard")) == 2


def test_a_failed_upload_of_metrics_does_not_stop_the_training(
    output: StorePath, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MetricsLog(output, "masked", 4, 1) as journal:
        with monkeypatch.context() as patch:
            patch.setattr("diffretriever.training.run_folder.put_file", _refused)
            journal.add({"step": 1, "validation/dense": 0.5})
        assert "uploaded at the next checkpoint" in capsys.readouterr().err
        journal.add({"step": 2, "validation/dense": 0.5})
    assert read_text(output / METRICS_FILE).count("\n") == 2


def _refused(file: Path, target: object) -> None:
    raise ValueError(f"{target}: access is refused")

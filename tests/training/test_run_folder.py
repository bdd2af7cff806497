"""Output folders, metrics logs and recipes of trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from diffretriever.backbones.source import EMBEDDED_ADAPTERS
from diffretriever.core.files import file_digest
from diffretriever.encoders import load_preparer
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import ContentWordsConfig, MaskedRetriever
from diffretriever.schemas.training import RECIPES, Recipe, TrainingManifest, TrainJob
from diffretriever.training.run_folder import MetricsLog, RunFolder
from diffretriever.training.session import describe_training
from diffretriever.training.trainable import with_training_lengths
from tests.training.trainer_cases import FolderOf, ListedData, config_of, quick_recipe, session_of


def job_for(output: Path) -> TrainJob:
    return TrainJob(train="set", output=output)


def manifest_of(folder_of: FolderOf, size: int = 48, **recipe: object) -> TrainingManifest:
    return describe_training(config_of("masked-dream", folder_of), quick_recipe(**recipe), ListedData(size), 1, "cpu")


def test_a_folder_accepts_only_one_training(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out")
    manifest = manifest_of(folder_of)
    folder.start(manifest, job_for(tmp_path))
    RunFolder(tmp_path / "out").start(manifest, job_for(tmp_path))
    with pytest.raises(ValueError, match=r"examples: 48 != 40\n  recipe\.seed: 42 != 7\n  total_steps: 6 != 5"):
        folder.start(manifest_of(folder_of, size=40, seed=7), job_for(tmp_path))
    other = manifest.model_copy(update={"data": "other", "weights": "w"})
    with pytest.raises(ValueError, match=r"data: of the tests != other\n  weights: .* != w"):
        folder.start(other, job_for(tmp_path))
    with pytest.raises(ValueError, match="workers: 1 != 2"):
        folder.start(manifest.model_copy(update={"workers": 2}), job_for(tmp_path))
    assert not folder.finished


def test_identity_ignores_paths_and_query_time_settings(folder_of: FolderOf) -> None:
    manifest = manifest_of(folder_of)
    place = manifest.retriever.backbone.model_copy(update={"source": "elsewhere"})  # type: ignore[union-attr]
    moved = manifest.model_copy(update={"retriever": manifest.retriever.model_copy(update={"backbone": place})})
    assert manifest.identity == moved.identity
    named = manifest.retriever.model_copy(update={"default_mode": "dense+0.3bm25"})
    assert manifest.identity == manifest.model_copy(update={"retriever": named, "step": 3}).identity


def test_the_output_is_a_retriever(folder_of: FolderOf, tmp_path: Path) -> None:
    retriever = config_of("masked-bert", folder_of, text={"max_passage_tokens": 99, "title_join": "none"})
    recipe = quick_recipe(max_steps=1)
    session = session_of(retriever, recipe)
    list(session.trainer.run())
    manifest = session.save_adapter(tmp_path / "checkpoint" / "adapter")
    folder = RunFolder(tmp_path / "out")
    assert folder.finish(tmp_path / "checkpoint") == folder.result() == manifest
    assert folder.finished
    loaded = load_retriever(str(tmp_path / "out" / "retriever.yaml"))
    assert isinstance(loaded, MaskedRetriever)
    assert loaded.backbone.adapter == str(tmp_path / "out" / "adapter")
    place = loaded.backbone.model_copy(update={"adapter": None})
    assert loaded.model_copy(update={"backbone": place}) == with_training_lengths(retriever, recipe)
    assert (loaded.text.max_query_tokens, loaded.text.max_passage_tokens, loaded.text.title_join) == (32, 156, "none")


def test_other_settings_than_in_training_are_reported(
    folder_of: FolderOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = config_of("masked-bert", folder_of)
    session_of(retriever, quick_recipe(max_steps=1)).save_adapter(tmp_path / "adapter")
    place = retriever.backbone.model_copy(update={"adapter": str(tmp_path / "adapter")})
    words = ContentWordsConfig(subwords=True)
    load_preparer(retriever.model_copy(update={"backbone": place, "content_words": words}))
    (message,) = caplog.messages
    for part in ("content_words.subwords False (here True)", "text.max_query_tokens 32 (here 512)"):
        assert part in message


def test_the_metrics_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = {"loss": 2.0, "accuracy": 0.5, "tokens_per_second": 1234.5, "utilisation": 0.456}
    with MetricsLog(tmp_path, "masked minilm", 2, 1) as journal:
        journal.add({"step": 0, "validation/dense": 0.25})
        journal.add({"step": 1, **step})
        journal.add({"step": 2, **step})
    assert capsys.readouterr().err.splitlines() == [
        "masked minilm: 2 steps",
        "masked minilm: step 0: validation/dense 0.2500",
        "masked minilm: 1/2 (50 %), loss 2.0000, accuracy 0.500, 1,234 tokens/s, 46 % of the device's FLOPs",
        "masked minilm: 2/2 (100 %), loss 2.0000, accuracy 0.500, 1,234 tokens/s, 46 % of the device's FLOPs",
    ]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"validation/dense" in events.read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learn_rate": 1e-3}, "Did you mean 'learning_rate'"),
        ({"batch_queries": 20}, "must be a multiple of queries_per_device"),
        ({"hard_negatives": 0, "queries_per_device": 1}, "queries have no negatives"),
        ({"lora_dropout": 1.0}, "less than 1"),
    ],
)
def test_recipes_that_make_no_sense(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(fields)


def test_a_job_carries_its_recipe(tmp_path: Path) -> None:
    job = TrainJob(train="set", output=tmp_path, query_budgets=(1, 4), workers=4)
    assert job.hyperparameters == Recipe(query_budgets=(1, 4))
    with pytest.raises(ValidationError, match="3 workers cannot share evenly"):
        TrainJob(train="set", output=tmp_path, workers=3)


def test_recipes_by_name(tmp_path: Path) -> None:
    given = ["--train", "set", "--output", str(tmp_path)]
    plain, paper, *_ = (TrainJob.from_command_line([*given, "--recipe", name]) for name in RECIPES)
    assert plain == TrainJob.from_command_line(given)
    assert plain.hyperparameters == Recipe()
    assert (paper.hyperparameters, paper.workers) == (Recipe(strategy="deepspeed"), 4)
    for name, folder in EMBEDDED_ADAPTERS.items():
        shipped = TrainingManifest.model_validate_json((folder / "training.json").read_text())
        ours_now = TrainJob.from_command_line([*given, "--recipe", name])
        assert (ours_now.hyperparameters, ours_now.workers) == (shipped.recipe, shipped.workers)
    with pytest.raises(SystemExit):
        TrainJob.from_command_line([*given, "--recipe", "papers"])


def test_flags_override_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--train", "set", "--output", str(tmp_path)]
    file = tmp_path / "train.yaml"
    file.write_text("recipe: paper\nhard_negatives: 7\n")
    job = TrainJob.from_command_line([*given, "--config", str(file), "--workers", "2"])
    assert (job.hard_negatives, job.workers) == (7, 2)
    assert job.recipe_title == "paper with hard_negatives 7, workers 2"
    file.write_text(job.to_yaml())
    assert TrainJob.from_command_line(["--config", str(file)]).hyperparameters == job.hyperparameters
    monkeypatch.setenv("DIFFRETRIEVER_RECIPE", "minilm")
    assert TrainJob.from_command_line(given).recipe_title == "minilm"


@pytest.mark.parametrize("folder", EMBEDDED_ADAPTERS.values(), ids=EMBEDDED_ADAPTERS)
def test_the_manifest_of_an_embedded_adapter_matches_its_files(folder: Path) -> None:
    manifest = TrainingManifest.model_validate_json((folder / "training.json").read_text())
    assert manifest.adapter == file_digest(folder / "adapter_model.safetensors")
    assert manifest.slots == file_digest(folder / "slots.safetensors")
    stages = json.loads((folder / "provenance.json").read_text())["stages"]
    assert all(stage["commit"] and stage["training_data"] for stage in stages)
    last = TrainingManifest.model_validate(stages[-1]["training"])
    assert last.identity == manifest.identity
    curve = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    for number, stage in enumerate(stages, start=1):
        steps = [point["step"] for point in curve if point["stage"] == number and "loss" in point]
        assert steps[-1] == stage["training"]["step"] == stage["training"]["total_steps"]

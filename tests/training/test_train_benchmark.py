"""benchmarks.train in a tiny form: the two loops train alike, the arithmetic is counted as torch counts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.train import __main__ as train
from benchmarks.train import figures, loops
from benchmarks.train.figures import Run, Setting
from benchmarks.train.loops import data_of
from diffretriever.backbones.flops import Matrices
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.testing.checkpoints import write_random_checkpoint
from diffretriever.training import loop
from diffretriever.training.adapters import target_modules
from diffretriever.training.session import describe_training, open_session
from tests.training.trainer_cases import ALONE, FolderOf, config_of, quick_recipe, text_of

# Equal lengths, so that no token is padding.
TEXTS = [f"{text_of(3 * row)} {'honey' if row % 2 else 'river'} {number}" for row, number in enumerate("abcdefgh" * 9)]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [json.dumps({"_id": f"p{i}", "title": "", "text": f"{text} {i}"}) for i, text in enumerate(TEXTS)]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return str(file)


@pytest.fixture(autouse=True)
def _called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["python -m benchmarks.train"])


def described(retriever: Any, folder: Path) -> Path:
    file = folder / "retriever.yaml"
    file.write_text(retriever.model_dump_json(), "utf-8")
    return file


def made_up(losses: list[float], flops: float = 0) -> Run:
    return Run(tokens_per_second=10, tokens_per_cpu_second=20, peak_mb=5, losses=losses, flops_per_second=flops)


@pytest.fixture
def retriever(folder_of: FolderOf, tmp_path: Path) -> Path:
    return described(config_of("masked-bert", folder_of), tmp_path)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_both_loops_train_alike(
    checkpointing: bool, collection: str, retriever: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their losses stay equal after steps, so gradients, clipping and the optimiser do too."""
    for module in (loop, loops):
        monkeypatch.setattr(module, "WARMUP", 0)
    recipe = quick_recipe(gradient_checkpointing=checkpointing, lora_dropout=0, max_steps=3)
    setting = Setting(retriever=retriever, dtype="float32", recipe=recipe, collection=collection, device="cpu")
    plain, ours = (run(setting.model_dump(mode="json")) for run in (loops.plain, loops.ours))
    assert len(plain.losses) == len(ours.losses) == 3
    assert ours.losses == pytest.approx(plain.losses, rel=1e-3)
    assert abs(ours.losses[0] - ours.losses[1]) > 0.01
    assert min(run.tokens_per_second for run in (plain, ours)) > 0
    assert min(run.peak_mb for run in (plain, ours)) > 100


def test_the_whole_benchmark(
    collection: str,
    retriever: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def here(module: str, function: str, **arguments: Any) -> Any:
        assert module == loops.__name__
        return getattr(loops, function)(**arguments).model_dump()

    monkeypatch.setattr(figures, "in_child", here)
    given = ["--retriever", str(retriever), "--collection", collection, "--device", "cpu", "--batch-queries", "2"]
    given += ["--queries-per-device", "1", "--steps", "1", "--repeats", "1", "--output", str(tmp_path / "out.json")]
    train.main(train.TrainBenchmark.from_command_line(given))
    lines = capsys.readouterr().out.splitlines()
    names = ("no checkpointing", "checkpointing")
    assert [line.split("  ")[0] for line in lines[-2:]] == list(names)
    written = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert written["command"] == "python -m benchmarks.train"
    assert [result["name"] for result in written["results"]] == list(names)
    assert all(len(result["baseline"][0]["losses"]) == 2 for result in written["results"])


def test_loops_that_differ_are_refused(retriever: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(retriever=retriever, dtype="float32", recipe=quick_recipe(), collection="x", device="cpu")

    def runs(_: str, function: str, **given: Any) -> dict[str, Any]:
        is_other = function == "ours" or given["setting"]["recipe"]["strategy"] == "deepspeed"
        return made_up([losses[0], losses[1] if is_other else losses[0]]).model_dump()

    monkeypatch.setattr(figures, "in_child", runs)
    losses = (2.1, 2.0)
    with pytest.raises(RuntimeError, match=r"2 workers: the loss of step 2 is 2\.1 with ddp, 2\.0 with deep"):
        figures.strategies(setting, 2, 1)
    # The Trainer's loop is held to its first step alone.
    found = figures.measured(setting, 1)
    assert found.row()[:4] == ["no checkpointing", "10", "10", "1.00"]
    losses = (2.1, 2.1)
    assert figures.strategies(setting, 1, 2).row()[-1] == "1.00 1.00"


def test_flops_as_torch_counts_them(tmp_path: Path, collection: str) -> None:
    model = write_random_checkpoint("bert", tmp_path / "bert", hidden_size=64, layers=8)
    config = MaskedRetriever.model_validate(
        {
            "backbone": {"source": str(model), "dtype": "float32"},
            "budget": "q2p2",
            "prompt": {"variant": "bare"},
        }
    )
    recipe = quick_recipe(hard_negatives=1, max_steps=1, lora_dropout=0)
    setting = Setting(
        retriever=described(config, tmp_path), dtype="float32", recipe=recipe, collection=collection, device="cpu"
    )
    data, retriever = data_of(setting), load_retriever(str(setting.retriever))
    assert isinstance(retriever, MaskedRetriever)
    session = open_session(data, describe_training(retriever, recipe, data, 1, "cpu"), "cpu", ALONE)
    # Torch counts no operations of attention's own kernel on a CPU.
    session.encoder.backbone.model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        list(session.trainer.run())
    parts = session.trainer.batches.parts(0)
    lengths = np.concatenate([part.lengths for part in parts])
    matrices, adapted = Matrices.of(session.encoder.backbone), target_modules(session.encoder.backbone, session.lora)
    assert matrices.frozen == sum(matrix.weight.numel() for matrix in adapted.values())
    assert matrices[1:] == (session.manifest.trainable, 8, 64)
    expected = matrices.training_flops(lengths)
    # The first layer's input needs no gradient, padding is computed too, and there are a few logits and scores.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.08)

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
from benchmarks.train.loops import data_of, model_flops
from diffretriever.presets import load_retriever
from diffretriever.random_models.checkpoints import write_random_checkpoint
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.training.lora import target_modules
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


@pytest.mark.parametrize("negatives", ["gathered", "cached"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_both_loops_train_alike(negatives: str, checkpointing: bool, collection: str, retriever: Path) -> None:
    """Their losses stay equal after steps, so gradients, clipping and the optimiser do too."""
    recipe = quick_recipe(
        negatives=negatives, gradient_checkpointing=checkpointing, lora_dropout=0, warmup=0, max_steps=3
    )
    setting = Setting(retriever=retriever, dtype="float32", recipe=recipe, collection=collection, device="cpu")
    plain, ours = (loop(setting.model_dump(mode="json")) for loop in (loops.plain, loops.ours))
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
    names = ("gathered", "gathered, checkpointing", "cached", "cached, checkpointing")
    assert [line.split("  ")[0] for line in lines[-4:]] == list(names)
    written = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert written["command"] == "python -m benchmarks.train"
    assert [result["name"] for result in written["results"]] == list(names)
    assert all(len(result["plain"][0]["losses"]) == 2 for result in written["results"])


def test_loops_that_differ_are_refused(retriever: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(retriever=retriever, dtype="float32", recipe=quick_recipe(), collection="x", device="cpu")

    def runs(_: str, function: str, **__: Any) -> dict[str, Any]:
        return made_up([2.0 if function == "ours" else 2.1]).model_dump()

    monkeypatch.setattr(figures, "in_child", runs)
    with pytest.raises(RuntimeError, match=r"gathered: the Trainer begins with a loss of 2\.1, ours with 2\.0"):
        figures.measured(setting, 1)


def test_7b_needs_a_gpu() -> None:
    with pytest.raises(SystemExit, match="--gpu-7b needs a GPU, and torch sees none"):
        train.main(train.TrainBenchmark(gpu_7b=True, device="cpu"))


def test_a_collection_may_be_too_small(collection: str, retriever: Path) -> None:
    recipe = quick_recipe(max_steps=100)
    setting = Setting(retriever=retriever, dtype="float32", recipe=recipe, collection=collection, device="cpu")
    with pytest.raises(SystemExit, match="has 72 passages, and 800 queries with 3 each need 2400"):
        data_of(setting)


def test_the_shares_of_a_gpu() -> None:
    runs = [made_up([], share * 1e12) for share in (1, 4, 3)]
    row = figures.Figures7B(name="x", ours=runs, peak_tflops=10).row()
    assert row == ["x", "10", "5", "3.0", "0.300", "0.100 0.400 0.300"]


def test_flops_by_hand() -> None:
    # Two texts of 3 and 1 tokens; one layer with a matrix of 10 weights and 2 of LoRA, attention 5 wide.
    assert model_flops(np.array([3, 1]), 10, 2, 1, 5) == 4 * (4 * 10 + 6 * 2) + 12 * 5 * (9 + 1)


def test_flops_as_torch_counts_them(tmp_path: Path, collection: str) -> None:
    model = write_random_checkpoint("bert", tmp_path / "bert", hidden_size=64, layers=8)
    config = MaskedRetriever.model_validate(
        {
            "backbone": {"source": str(model), "dtype": "float32", "attention": "eager"},
            "budget": "q2p2",
            "prompt": {"variant": "bare"},
        }
    )
    recipe = quick_recipe(negatives="local", hard_negatives=1, max_steps=1, lora_dropout=0)
    setting = Setting(
        retriever=described(config, tmp_path), dtype="float32", recipe=recipe, collection=collection, device="cpu"
    )
    data, retriever = data_of(setting), load_retriever(str(setting.retriever))
    assert isinstance(retriever, MaskedRetriever)
    session = open_session(data, describe_training(retriever, recipe, data, 1, "cpu"), "cpu", ALONE)
    with FlopCounterMode(display=False) as counter:
        list(session.trainer.run())
    parts = session.trainer.batches.parts(0)
    lengths = np.array([len(text.input_ids) for part in parts for text in (*part.queries, *part.passages)])
    matrices = sum(m.weight.numel() for m in target_modules(session.encoder.backbone, session.lora).values())
    expected = model_flops(lengths, matrices, session.manifest.trainable or 0, 8, 64)
    # The first layer's input needs no gradient, padding is computed too, and there are a few logits and scores.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.08)

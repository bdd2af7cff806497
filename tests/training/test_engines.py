"""DeepSpeed ZeRO-2 and data parallelism train equally on two workers, and resume."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.schemas.training import Recipe
from diffretriever.training.adapters import adapter_tensors, trainable_parameters
from diffretriever.training.gather import Workers
from diffretriever.training.session import Session
from tests.training.trainer_cases import (
    WORKERS,
    FolderOf,
    config_of,
    on_workers,
    quick_recipe,
    run,
    session_of,
    with_dtype,
)

STEPS = 4
STRATEGIES = ("ddp", "deepspeed")

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="the extra `train` is not installed")


class Run(NamedTuple):
    figures: list[tuple[int, float, float]]
    """Step, loss and the gradient's norm."""
    adapter: dict[str, torch.Tensor]


class Found(NamedTuple):
    straight: Run
    resumed: Run
    gradients: set[torch.dtype]
    weights: set[torch.dtype]


def _recipe(strategy: str) -> Recipe:
    return quick_recipe(strategy=strategy, lora_dropout=0.2, max_steps=STEPS)


def _run(session: Session) -> Run:
    figures = [(m.step, m.loss, m.gradient_norm) for m in run(session, STEPS)]
    return Run(figures, adapter_tensors(session.encoder.backbone))


def _trained(retriever: BackboneRetriever, recipe: Recipe, folder: Path) -> Found:
    workers = Workers(dist.get_rank(), WORKERS)
    straight, killed, resumed = (session_of(retriever, recipe, workers=workers) for _ in range(3))
    parameters = dict(straight.encoder.backbone.model.named_parameters())
    gradients: set[torch.dtype] = set()
    for parameter in trainable_parameters(straight.encoder.backbone).values():
        parameter.register_hook(lambda gradient: gradients.add(gradient.dtype))
    frozen = {name: parameter.clone() for name, parameter in parameters.items() if not parameter.requires_grad}
    whole = _run(straight)
    assert all(torch.equal(parameters[name], before) for name, before in frozen.items())
    run(killed, 2)
    # Ray brings the files of all workers together in one folder.
    folder.mkdir(exist_ok=True)
    killed.trainer.save(folder)
    dist.barrier()
    resumed.trainer.load(folder)
    return Found(whole, _run(resumed), gradients, {parameter.dtype for parameter in frozen.values()})


def _worker(rank: int, place: str, retriever: BackboneRetriever) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=WORKERS)
    half = with_dtype(retriever, "bfloat16")
    cases = {strategy: (retriever, _recipe(strategy)) for strategy in STRATEGIES}
    cases |= {f"{strategy} bfloat16": (half, _recipe(strategy)) for strategy in STRATEGIES}
    found = {name: tuple(_trained(*case, Path(place) / name)) for name, case in cases.items()}
    torch.save(found, f"{place}/found-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def place(folder_of: FolderOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    on_workers(_worker, str(folder), config_of("masked-llada", folder_of))
    return folder


def found_by(place: Path, rank: int, name: str) -> Found:
    straight, resumed, *dtypes = torch.load(place / f"found-{rank}.pt", weights_only=False)[name]
    return Found(Run(*straight), Run(*resumed), *dtypes)


def assert_resumed(found: Found) -> None:
    assert found.resumed.figures == found.straight.figures[2:]
    assert_equal(found.straight, found.resumed)


def assert_equal(one: Run, other: Run) -> None:
    assert all(torch.equal(one.adapter[name], other.adapter[name]) for name in one.adapter)


def test_the_same_training_and_both_resume(place: Path) -> None:
    plain = found_by(place, 0, "ddp").straight
    for strategy in STRATEGIES:
        found = found_by(place, 0, strategy)
        assert_resumed(found)
        for ours, theirs in zip(found.straight.figures, plain.figures, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)
        for name, tensor in found.straight.adapter.items():
            torch.testing.assert_close(tensor, plain.adapter[name], atol=1e-5, rtol=1e-4)
        assert_equal(found.straight, found_by(place, 1, strategy).straight)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_fp32_adapter_on_bf16_weights(place: Path, strategy: str) -> None:
    found = found_by(place, 0, f"{strategy} bfloat16")
    assert (found.weights, found.gradients) == ({torch.bfloat16}, {torch.float32})
    assert {tensor.dtype for tensor in found.straight.adapter.values()} == {torch.float32}
    assert_resumed(found)
    assert_equal(found.straight, found_by(place, 1, f"{strategy} bfloat16").straight)
    losses = [loss for _, loss, _ in found.straight.figures]
    assert losses[-1] < 0.85 * losses[0]
    assert losses == pytest.approx([loss for _, loss, _ in found_by(place, 0, strategy).straight.figures], rel=0.05)


class _Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


def test_a_checkpoint_of_deepspeed_cannot_run_anything(tmp_path: Path) -> None:
    from diffretriever.training.engine import values_only

    torch.save({"optimizer": _Hostile(tmp_path / "it-ran")}, tmp_path / "state.pt")
    with values_only(), pytest.raises(UnpicklingError, match="Weights only load failed"):
        torch.load(tmp_path / "state.pt", weights_only=False)
    assert not (tmp_path / "it-ran").exists()

"""DeepSpeed ZeRO-2 and plain data parallelism on two workers: the same training, and both resume."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from diffretriever.training.gather import Workers
from diffretriever.training.lora import adapter_tensors
from diffretriever.training.session import Session
from schemas.retriever import BackboneRetriever
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of

WORKERS = 2
STEPS = 4
STRATEGIES = ("ddp", "deepspeed")

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="the extra `train` is not installed")


def _session(retriever: BackboneRetriever, strategy: str) -> Session:
    recipe = quick_recipe(strategy=strategy, negatives="gathered", lora_dropout=0.2, clip_norm=0.5, max_steps=STEPS)
    return session_of(retriever, recipe, workers=Workers.current())


def _worker(rank: int, place: str, retriever: BackboneRetriever) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=WORKERS)
    found = {}
    for strategy in STRATEGIES:
        straight = _session(retriever, strategy)
        metrics = run(straight, STEPS)
        killed = _session(retriever, strategy)
        run(killed, 2)
        # Ray brings the files of all workers together in one folder.
        folder = Path(place) / strategy
        folder.mkdir(exist_ok=True)
        killed.trainer.save(folder)
        dist.barrier()
        resumed = _session(retriever, strategy)
        resumed.trainer.load(folder)
        metrics_after = run(resumed, STEPS)
        found[strategy] = [
            ([(m.step, m.loss, m.gradient_norm) for m in of], adapter_tensors(session.encoder.backbone))
            for of, session in ((metrics, straight), (metrics_after, resumed))
        ]
    torch.save(found, f"{place}/found-{rank}.pt")
    dist.destroy_process_group()


def test_the_same_training_and_both_resume(folder_of: FolderOf, tmp_path: Path) -> None:
    spawn(_worker, args=(str(tmp_path), config_of("masked-llada", folder_of)), nprocs=WORKERS)
    found = torch.load(tmp_path / "found-0.pt")
    (plain, plain_adapter), _ = found["ddp"]
    for strategy in STRATEGIES:
        (straight, adapter), (resumed, resumed_adapter) = found[strategy]
        assert resumed == straight[2:]
        assert all(torch.equal(adapter[name], resumed_adapter[name]) for name in adapter)
        for ours, theirs in zip(straight, plain, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)
        for name in adapter:
            torch.testing.assert_close(adapter[name], plain_adapter[name], atol=1e-5, rtol=1e-4)
    other = torch.load(tmp_path / "found-1.pt")
    assert all(torch.equal(other["deepspeed"][0][1][name], found["deepspeed"][0][1][name]) for name in plain_adapter)


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

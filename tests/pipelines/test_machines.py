"""How many encoders a cluster has room for, and what a job waits for."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from diffretriever.pipelines.cluster import EncoderPool, Share, size_pool
from diffretriever.schemas.retriever import BackboneConfig, Bm25Retriever, MaskedRetriever, RetrieverConfig
from diffretriever.schemas.settings import RayConfig

MODEL = MaskedRetriever(backbone=BackboneConfig(source="x"))
CPU_HEAD, GPU_WORKER = Share(8, 0), Share(8, 1)
HEAD = (CPU_HEAD,)


def pool_of(nodes: tuple[Share, ...], retriever: RetrieverConfig = MODEL, **config: Any) -> EncoderPool:
    with patch("diffretriever.pipelines.cluster.see_nodes", return_value=nodes):
        return size_pool(RayConfig(**config), retriever)


def test_a_model_waits_for_a_gpu_node(capsys: pytest.CaptureFixture[str]) -> None:
    pool = pool_of(HEAD, autoscale=True, encoders=40, gpus_per_encoder=1)
    assert (pool.encoders, pool.cpus, pool.gpus, pool.device) == (40, 1.0, 1.0, "cuda")
    said = capsys.readouterr().err
    assert said == "waiting for a machine with 1 GPU and 1 CPU: none with room is alive yet\n"


@pytest.mark.parametrize(
    ("retriever", "config"),
    [
        (Bm25Retriever(), {"autoscale": True}),
        (MODEL, {"autoscale": True, "gpus_per_encoder": 0}),
        (MODEL, {}),
    ],
    ids=["bm25", "asked for", "no autoscaling"],
)
def test_jobs_without_gpus_do_not_wait(
    retriever: RetrieverConfig, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pool_of(HEAD, retriever, encoders=2, **config).gpus == 0
    assert not capsys.readouterr().err


def test_running_gpus_are_used() -> None:
    alive = (CPU_HEAD, GPU_WORKER, GPU_WORKER)
    assert (pool_of(alive).encoders, pool_of(alive).gpus) == (2, 1.0)
    assert (pool_of(alive, autoscale=True, encoders=8).encoders, pool_of(alive, gpus_per_encoder=0.25).encoders) == (
        8,
        8,
    )
    assert pool_of(alive, Bm25Retriever()).gpus == 0


@pytest.mark.parametrize(
    ("nodes", "config", "left"),
    [
        (HEAD, {"gpus_per_encoder": 1}, 0),
        (HEAD, {"encoders": 11}, 10),
        # No encoder is on two machines.
        ((Share(3, 0), Share(3, 0)), {"cpus_per_encoder": 4}, 0),
    ],
)
def test_encoders_that_never_fit_are_rejected(nodes: tuple[Share, ...], config: dict[str, Any], left: int) -> None:
    with pytest.raises(ValueError, match=f"no room for .* which leaves room for {left} beside the"):
        pool_of(nodes, **config)


def test_autoscaling_needs_encoders_and_gpus() -> None:
    with pytest.raises(ValueError, match="--autoscale: pass --encoders"):
        pool_of(HEAD, autoscale=True)
    with pytest.raises(ValueError, match=r"no GPU is alive yet: pass --gpus-per-encoder 1 to"):
        pool_of(HEAD, autoscale=True, encoders=2)

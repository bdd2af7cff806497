"""What a cluster has room for and can come to have room for, and where a job reads that."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from diffretriever.pipelines import cluster
from diffretriever.pipelines.cluster import EncoderPool, Kind, Machines, Share, kinds_in, size_pool
from diffretriever.schemas.retriever import BackboneConfig, Bm25Retriever, MaskedRetriever, RetrieverConfig
from diffretriever.schemas.settings import RayConfig

ROOT = Path(__file__).resolve().parents[2]
MODEL = MaskedRetriever(backbone=BackboneConfig(source="x"))
CPU_HEAD, GPU_WORKER = Share(8, 0), Share(8, 1)
GROWS = Machines((CPU_HEAD,), CPU_HEAD, (Kind(GPU_WORKER, 8),), limit=8)
FIXED = Machines((CPU_HEAD,), CPU_HEAD, ())
UNSEEN = Machines((CPU_HEAD,), CPU_HEAD, None)


def pool_of(cluster: Machines, retriever: RetrieverConfig = MODEL, **config: Any) -> EncoderPool:
    with patch("diffretriever.pipelines.cluster.see_machines", return_value=cluster):
        return size_pool(RayConfig(**config), retriever)


def test_a_model_waits_for_a_gpu_that_can_come(capsys: pytest.CaptureFixture[str]) -> None:
    pool = pool_of(GROWS, autoscale=True)
    assert (pool.encoders, pool.cpus, pool.gpus, pool.device) == (8, 1.0, 1.0, "cuda")
    said = capsys.readouterr().err
    assert said == (
        "waiting for a machine with 1 GPU and 1 CPU: none with room is alive yet, the cluster may add up to 8\n"
    )


@pytest.mark.parametrize(
    ("retriever", "config"),
    [
        (Bm25Retriever(), {"autoscale": True}),
        (MODEL, {"autoscale": True, "gpus_per_encoder": 0}),
        (MODEL, {}),
    ],
    ids=["bm25", "asked for", "no autoscaling"],
)
def test_others_use_cpus(
    retriever: RetrieverConfig, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pool_of(GROWS, retriever, encoders=2, **config).gpus == 0
    assert not capsys.readouterr().err


def test_gpus_that_are_alive_are_used() -> None:
    alive = Machines((CPU_HEAD, GPU_WORKER, GPU_WORKER), CPU_HEAD, (Kind(GPU_WORKER, 8),))
    assert (pool_of(alive).encoders, pool_of(alive).gpus) == (2, 1.0)
    assert pool_of(alive, autoscale=True).encoders == 8
    assert pool_of(alive, gpus_per_encoder=0.25).encoders == 8
    assert pool_of(alive, Bm25Retriever()).gpus == 0


@pytest.mark.parametrize(
    ("cluster", "config", "left"),
    [
        (GROWS, {"autoscale": True, "encoders": 9}, 8),
        (GROWS, {"autoscale": True, "gpus_per_encoder": 2}, 0),
        (GROWS, {"autoscale": True, "cpus_per_encoder": 9}, 0),
        (FIXED, {"autoscale": True, "gpus_per_encoder": 1}, 0),
        (FIXED, {"autoscale": True, "encoders": 99}, 10),
        (GROWS, {"gpus_per_encoder": 1}, 0),
        (GROWS, {"encoders": 11}, 10),
        # No encoder is on two machines.
        (Machines((Share(3, 0), Share(3, 0)), Share(3, 0), ()), {"cpus_per_encoder": 4}, 0),
    ],
)
def test_what_can_never_be_had_is_refused_at_once(cluster: Machines, config: dict[str, Any], left: int) -> None:
    with pytest.raises(ValueError, match=f"no room for .* which leaves room for {left} beside the"):
        pool_of(cluster, **config)


def test_where_nobody_can_say_the_user_is_asked() -> None:
    with pytest.raises(ValueError, match=r"no GPU is alive, and what .* cannot be seen .*say --gpus-per-encoder 1 to"):
        pool_of(UNSEEN, autoscale=True)
    assert pool_of(UNSEEN, autoscale=True, gpus_per_encoder=1, encoders=40).encoders == 40
    assert pool_of(UNSEEN).gpus == 0


def test_all_kinds_together_stay_below_the_clusters_limit() -> None:
    cluster = Machines((CPU_HEAD,), CPU_HEAD, (Kind(Share(8, 1), 8), Kind(Share(32, 4), 2)), limit=3)
    assert cluster.most_room(Share(1, 1)) == 2 * 4 + 1


def test_kinds_of_the_launcher_and_of_kuberay() -> None:
    launched = yaml.safe_load((ROOT / "cluster.yaml").read_text("utf-8"))
    needs = {"requests": {"cpu": "8", "memory": "48Gi", "nvidia.com/gpu": "1"}}
    pod = {"spec": {"containers": [{"name": "ray", "resources": needs | {"limits": needs["requests"]}}]}}
    head = {"rayStartParams": {}, "template": pod}
    most = launched["available_node_types"]["gpu_worker"]["max_workers"]
    group = {"groupName": "gpu", "replicas": 0, "minReplicas": 0, "maxReplicas": most, **head}
    manifest = {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"headGroupSpec": head, "workerGroupSpecs": [group]},
    }
    for config in (launched, _derive_autoscaling_config_from_ray_cr(manifest)):
        (kind,) = (kind for kind in kinds_in(config) or () if kind.machine.gpus)
        assert kind.machine.gpus == 1
        assert kind.most == most


def test_kinds_that_say_nothing_of_themselves() -> None:
    types = {"local.cluster.node": {"resources": {}, "max_workers": 2}}
    assert kinds_in({"available_node_types": types}) is None
    assert kinds_in({}) == ()


def test_kuberay_is_asked_in_its_pods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("RAY_CLUSTER_NAME", "diffretriever")
    assert cluster._autoscaler_config() is None
    (tmp_path / "namespace").write_text("here\n")
    monkeypatch.setattr(cluster, "_NAMESPACE", tmp_path / "namespace")
    with patch("ray.autoscaler._private.kuberay.autoscaling_config.AutoscalingConfigProducer") as producer:
        producer.return_value.return_value = {"max_workers": 3}
        assert cluster._autoscaler_config() == {"max_workers": 3}
    producer.assert_called_once_with("diffretriever", "here")

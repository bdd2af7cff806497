"""Deployments built from arguments and from the config of the cluster, without running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._common.utils import import_attr
from ray.serve._private.build_app import build_app
from ray.serve.schema import ServeDeploySchema

from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serve.app import search_app
from diffretriever.serving.guard import Keys

ROOT = Path(__file__).resolve().parents[2]


def built(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the deployments by name."""
    return {each.name: each for each in build_app(search_app({"open": True, **arguments}), name="a").deployments}


def test_the_cluster_config_deploys_encoders_on_gpus_and_shards() -> None:
    config = yaml.safe_load((ROOT / "serve" / "config.yaml").read_text("utf-8"))
    (application,) = ServeDeploySchema.model_validate(config).applications
    assert import_attr(application.import_path) is search_app
    deployments = built(application.args)
    shards = application.args["shards"]
    assert shards > 1
    assert set(deployments) == {"Ingress", "Encoder", *(f"Shard{number}" for number in range(shards))}
    options = deployments["Encoder"].ray_actor_options
    assert (options["num_cpus"], options["num_gpus"]) == (2, 1)
    assert [deployments[f"Shard{number}"].init_args[1] for number in range(shards)] == list(range(shards))
    for name, kind in (("Ingress", "ingress"), ("Encoder", "encoder"), (f"Shard{shards - 1}", "shard")):
        scaling = deployments[name]._deployment_config.autoscaling_config
        bounds = application.args[kind]["min_replicas"], application.args[kind]["max_replicas"]
        assert (scaling.min_replicas, scaling.max_replicas) == bounds
        assert bounds[0] < bounds[1]
        assert 0 < scaling.target_ongoing_requests < deployments[name].max_ongoing_requests


def test_replicas_get_digests_of_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_API_KEY", "a-key-for-the-tests")
    monkeypatch.setenv("DIFFRETRIEVER_READ_KEY", "another-key-for-them")
    ingress = built({"index": "i"})["Ingress"]
    assert "-key" not in repr(ingress.init_args)
    assert ingress.init_args[1] == Keys.of("a-key-for-the-tests", "another-key-for-them")
    monkeypatch.setenv("DIFFRETRIEVER_READ_KEY", "a-key-for-the-tests")
    with pytest.raises(ValueError, match="set another read key"):
        built({"index": "i"})
    monkeypatch.delenv("DIFFRETRIEVER_API_KEY")
    assert built({"index": "i"})["Ingress"].init_args[1] == Keys.of(read="a-key-for-the-tests")
    monkeypatch.delenv("DIFFRETRIEVER_READ_KEY")
    assert built({"index": "i"})["Ingress"].init_args[1] == Keys()


def test_a_server_without_keys_must_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no API key: set DIFFRETRIEVER_API_KEY or "):
        search_app({"index": "i"})
    monkeypatch.setenv("DIFFRETRIEVER_API_KEY", "")
    with pytest.raises(ValueError, match="DIFFRETRIEVER_API_KEY is set but empty"):
        search_app({"index": "i", "open": True})
    monkeypatch.setenv("DIFFRETRIEVER_API_KEY", "a-key-for-the-tests")
    search_app({"index": "i"})


def test_the_index_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_INDEX", str(tmp_path))
    assert built({})["Ingress"].init_args[0].index == str(tmp_path)
    monkeypatch.delenv("DIFFRETRIEVER_INDEX")
    with pytest.raises(ValueError, match="index"):
        built({})


def test_replicas_without_a_gpu_use_the_cpu() -> None:
    config = ServeConfig.from_arguments({"index": "i", "layout": "apart", "encoder.gpus": 1})
    assert [config.device_of(each) for each in (config.ingress, config.encoder, config.shard)] == ["cpu", "auto", "cpu"]
    chosen = config.model_copy(update={"device": "cuda"})
    assert chosen.device_of(chosen.shard) == "cuda"

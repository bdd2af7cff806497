"""cluster.yaml is valid against Ray's own schema; the KubeRay manifest says the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


@pytest.mark.filterwarnings("ignore")
def test_cluster_config_is_valid() -> None:
    validate_config(prepare_config(load("cluster.yaml")))


def test_workers_come_and_go_and_the_head_needs_no_gpu() -> None:
    config = load("cluster.yaml")
    head, worker = (
        config["available_node_types"][config["head_node_type"]],
        config["available_node_types"]["gpu_worker"],
    )
    assert head["resources"]["GPU"] == 0
    assert worker["min_workers"] == 0
    assert worker["resources"]["GPU"] > 0


def test_the_submit_command_in_the_comments_names_real_flags() -> None:
    from schemas.encode import EncodeJob

    comment = "\n".join(
        line for line in (ROOT / "cluster.yaml").read_text("utf-8").splitlines() if line.startswith("#")
    )
    command = re.search(r"ray job submit .*?\n#\n|ray job submit (?:.|\n#)*?ray down", comment)
    assert command is not None
    flags = re.findall(r"--([a-z-]+)", command[0].partition("encode_beir.py")[2])
    assert flags
    assert set(flags) <= {name.replace("_", "-") for name in EncodeJob.model_fields}


def test_kuberay_says_the_same() -> None:
    manifest = load("docs/kuberay.yaml")
    worker = manifest["spec"]["workerGroupSpecs"][0]
    assert manifest["kind"] == "RayCluster"
    assert manifest["spec"]["enableInTreeAutoscaling"] is True
    assert (worker["minReplicas"], worker["maxReplicas"]) == (0, load("cluster.yaml")["max_workers"])
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    assert pinned is not None
    assert manifest["spec"]["rayVersion"] == pinned[1]

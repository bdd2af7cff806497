"""cluster.yaml, the Kubernetes manifests and serve/config.yaml are valid and agree with each other."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.studies.planning import make_plan, page
from diffretriever.studies.planning_config import PlanJob

ROOT = Path(__file__).resolve().parents[1]
JOB, SERVICE = "kubernetes/rayjob-encode.yaml", "kubernetes/rayservice-search.yaml"
CODE = "/opt/diffretriever"
"""Folder of the code in the image; tests/test_delivery.py checks it."""


def load(name: str) -> Any:
    return next(yaml.safe_load_all((ROOT / name).read_text("utf-8")))


def comment(name: str) -> str:
    """Return the comments of a file, with continued lines joined."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return "\n".join(line.removeprefix("#").strip() for line in lines if line.startswith("#")).replace("\\\n", "")


def cluster_of(manifest: Any) -> Any:
    return manifest["spec"]["rayClusterSpec" if manifest["kind"] == "RayJob" else "rayClusterConfig"]


def container(group: Any) -> Any:
    (found,) = group["template"]["spec"]["containers"]
    return found


def arguments_of(command: str) -> list[str]:
    return shlex.split(command.partition("encode_beir.py")[2])


def submitted() -> str:
    found = re.search(r"ray job submit .*", comment("cluster.yaml"))
    assert found is not None
    return found[0]


@pytest.mark.filterwarnings("ignore")
def test_cluster_config_is_valid() -> None:
    validate_config(prepare_config(load("cluster.yaml")))


def test_workers_autoscale_from_0_and_the_head_has_no_gpu() -> None:
    config = load("cluster.yaml")
    types = dict(config["available_node_types"])
    head = types.pop(config["head_node_type"])
    assert head["resources"]["GPU"] == 0
    assert {worker["min_workers"] for worker in types.values()} == {0}
    assert types["gpu_worker"]["resources"]["GPU"] > 0
    assert config["max_workers"] == sum(worker["max_workers"] for worker in types.values())


def test_file_mounts_have_all_files_of_the_install_script_and_the_service() -> None:
    mounts = load("cluster.yaml")["file_mounts"]
    home = "/home/ubuntu/diffretriever/"
    ours = {place.removeprefix(home): source for place, source in mounts.items() if place.startswith(home)}
    assert all(place == source and (ROOT / source).exists() for place, source in ours.items())
    read = set(re.findall(r"\$root/([\w.-]+)", (ROOT / "tools" / "install.sh").read_text("utf-8")))
    assert read | {"tools/install.sh", "platform", "schemas", "serve"} == set(ours)


def test_job_and_page_run_the_same_encode_command() -> None:
    entrypoint = load(JOB)["spec"]["entrypoint"]
    assert entrypoint.split()[:2] == ["python", f"{CODE}/jobs/encode_beir.py"]
    arguments = arguments_of(entrypoint)
    assert arguments_of(submitted()) == arguments
    job = EncodeJob.from_command_line(arguments)
    # Without it, encoders would start on the head.
    assert job.gpus_per_encoder == 1
    assert job.encoders == load("cluster.yaml")["available_node_types"]["gpu_worker"]["max_workers"]
    assert job.index == serve_config().index


def test_the_cluster_page_has_the_commands_and_figures_of_the_code() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    blocks = [block.replace("\\\n", "") for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]
    (submit,) = [line for block in blocks for line in block.splitlines() if "ray job submit" in line]
    assert arguments_of(submit) == arguments_of(submitted())
    (plan,) = [block for block in blocks if "jobs/plan.py" in block]
    command, *figures = plan.splitlines()
    job = PlanJob.from_command_line(shlex.split(command.partition("plan.py")[2]))
    assert set(figures) <= set(page(make_plan(job, None, [])).splitlines())


def serve_config() -> ServeConfig:
    (application,) = load("serve/config.yaml")["applications"]
    return ServeConfig.from_arguments(application["args"])


def test_serve_config_builds_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_API_KEY", "0" * 64)
    (application,) = ServeDeploySchema.model_validate(load("serve/config.yaml")).applications
    assert not application.runtime_env, "every machine has the code"
    module, _, name = application.import_path.partition(":")
    assert isinstance(getattr(import_module(module), name)(application.args), Application)


@pytest.mark.parametrize("name", [JOB, SERVICE])
def test_manifests_have_the_versions_and_settings_of_this_project(name: str) -> None:
    cluster = cluster_of(load(name))
    ray = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert ray is not None
    assert cluster["rayVersion"] == ray[1]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert container(group)["image"] == f"YOUR-REGISTRY/diffretriever:{version}"
        assert container(group)["env"] == container(cluster["headGroupSpec"])["env"]
        assert container(group)["resources"]["requests"] == container(group)["resources"]["limits"]
        assert group["template"]["spec"]["serviceAccountName"] == "diffretriever"


def test_the_kubernetes_job_scales_as_cluster_yaml() -> None:
    groups = cluster_of(load(JOB))["workerGroupSpecs"]
    types = load("cluster.yaml")["available_node_types"]
    assert {group["groupName"].replace("-", "_"): group["maxReplicas"] for group in groups} == {
        name: machine["max_workers"] for name, machine in types.items() if name != "head"
    }
    assert {group["minReplicas"] for group in groups} == {0}


def test_the_kubernetes_service_equals_serve_config() -> None:
    assert yaml.safe_load(load(SERVICE)["spec"]["serveConfigV2"]) == load("serve/config.yaml")

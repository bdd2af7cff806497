"""A cluster whose head has no CPUs, and which adds up to two machines with made-up GPUs, runs a job of three encoders.

When the job has ended, the machines go.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
import ray
from ray._private.services import get_node_ip_address
from ray.autoscaler._private.kuberay.autoscaling_config import _generate_legacy_autoscaling_config_fields

from diffretriever.pipelines import DEVICE_VARIABLE
from diffretriever.pipelines.blocks import pack
from diffretriever.pipelines.cluster import Share, on_this_node, ray_session, see_nodes
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.ray_executor import blocks_of, read_blocks
from tests.pipelines.corpora import JobMaker, line, write_corpus
from tests.ports import free_port

pytestmark = pytest.mark.cluster

HEAD_ID = "f" * 51 + "00000"
"""What Ray's provider of made-up machines calls the head."""
CONFIG = {
    **_generate_legacy_autoscaling_config_fields(),
    "cluster_name": "made-up",
    "max_workers": 2,
    "upscaling_speed": 1.0,
    # Seconds, but more of them than pass between what a job does on a machine.
    "idle_timeout_minutes": 0.1,
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
    "head_node_type": "ray.head.default",
}


@pytest.fixture
def growing(no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the cluster; of its machines only the head is alive."""
    port = free_port()
    provider = {
        "type": "fake_multinode",
        "gcs_address": f"{get_node_ip_address()}:{port}",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(CONFIG | {"provider": provider}))
    environment = {
        **os.environ,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        # As this process has it, whatever tokens lie in the user's folder.
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", f"--autoscaling-config={file}"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as head:
        assert head.stdout is not None
        said = takewhile(lambda each: "Ray runtime started" not in each, iter(head.stdout.readline, ""))
        assert "".join(said)
        yield str(provider["gcs_address"])
        ray.shutdown()
        # The machines are children of the autoscaler: a head that ends by itself would leave them behind.
        processes = psutil.Process(head.pid).children(recursive=True)
        head.kill()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)


def test_a_job_waits_for_a_gpu_node_and_releases_it(
    growing: str,
    tmp_path: Path,
    make_job: JobMaker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, "cpu")
    monkeypatch.setenv("RAY_ADDRESS", growing)

    # Of its own, so that Ray sends it to workers as a whole: they cannot import tests.
    def where() -> Iterator[pa.Table]:
        yield pack(ray.get_runtime_context().get_node_id(), pa.table({"row": [0]}))

    job = make_job(write_corpus(tmp_path / "corpus", [line(i) for i in range(3)]), autoscale=True)
    job = job.model_copy(update={"encoders": 3, "rows_per_block": 1, "gpus_per_encoder": 1.0})
    with ray_session():
        here = ray.get_runtime_context().get_node_id()
        assert see_nodes() == (Share(0, 0),)
        assert on_this_node(0.1)["num_cpus"] == 0
        assert [node for node, _ in blocks_of(read_blocks([where]))] == [here]
        assert encode_collection(job).encoded == 3
        # This process stays: it is no reason to keep a machine.
        while see_nodes() != (Share(0, 0),):
            time.sleep(0.1)
    assert "waiting for a machine with 1 GPU and 1 CPU: none" in capsys.readouterr().err

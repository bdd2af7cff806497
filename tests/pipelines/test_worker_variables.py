"""What Ray workers are told of whose code may run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from diffretriever.consent import VARIABLE, trust_code
from diffretriever.pipelines.cluster import ray_session
from schemas.settings import RayConfig


@pytest.mark.usefixtures("no_cluster")
def test_workers_trust_what_the_command_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "some/model@main")
    monkeypatch.chdir(tmp_path)
    trust_code(["./folder"])
    with ray_session(RayConfig(ray_address="local")):
        seen = ray.remote(lambda: os.environ[VARIABLE])
        assert ray.get(seen.remote()) == f"some/model@main,{tmp_path}/folder"

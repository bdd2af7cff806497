"""What Ray workers are told of whose code may run."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
import ray

from diffretriever.consent import VARIABLE, trust_code
from diffretriever.pipelines.cluster import connect, worker_variables

pytestmark = pytest.mark.cluster


@pytest.mark.usefixtures("cluster")
def test_workers_trust_what_the_command_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "some/model@main")
    monkeypatch.chdir(tmp_path)
    trust_code(["./folder"])
    with patch("ray.init") as init:
        connect("local")
    given = init.call_args.kwargs["runtime_env"]
    assert given == {"env_vars": worker_variables()}
    seen = ray.remote(lambda: os.environ[VARIABLE]).options(runtime_env=given)
    assert ray.get(seen.remote()) == f"some/model@main,{tmp_path}/folder"

"""Connecting to Ray: which of its messages a job shows, and what workers learn of code that may run."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from unittest.mock import patch

import lance
import pytest
import ray
from ray._private.authentication.authentication_token_setup import _warn_token_auth_disabled, _warn_token_auth_enabled
from ray.data._internal.execution.operators import actor_pool_map_operator

from diffretriever.consent import VARIABLE, trust_code
from diffretriever.pipelines.cluster import connect, worker_variables


def test_messages_that_need_no_action_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    """Ray's own sentences, from its code: a reworded one would be shown again."""
    with patch("ray.init"), warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        connect("local")
        lance.__warn_on_fork()
        warnings.warn("The minimum number of concurrent actors for 'x' is set to 4", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(each.message) for each in shown] == ["another"]
    assert "The minimum number of concurrent actors" in inspect.getsource(actor_pool_map_operator)
    _warn_token_auth_enabled()
    assert not caplog.records
    _warn_token_auth_disabled()
    assert "Anyone with network access" in caplog.text


@pytest.mark.cluster
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

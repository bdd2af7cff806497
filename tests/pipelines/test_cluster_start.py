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

from diffretriever.core.consent import trust_code
from diffretriever.pipelines.cluster import connect, worker_variables
from diffretriever.schemas.settings import TRUST_VARIABLE


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


def test_only_a_late_start_of_ray_is_retried(capsys: pytest.CaptureFixture[str]) -> None:
    late = RuntimeError("Timed out waiting for file /tmp/ray/session/gcs_server_port_1")
    with patch("ray.init", side_effect=[late, late, None]) as init:
        connect("local", num_cpus=2)
    assert (init.call_count, capsys.readouterr().err.count("starting it again")) == (3, 2)
    with patch("ray.init", side_effect=late), pytest.raises(RuntimeError, match="Timed out"):
        connect("local")
    with patch("ray.init", side_effect=ConnectionError("refused")) as init, pytest.raises(ConnectionError):
        connect("127.0.0.1:1")
    assert init.call_count == 1


def test_a_long_tmpdir_is_replaced_and_a_long_ray_tmpdir_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for length, given in ((39, None), (40, "/tmp/ray")):
        monkeypatch.setenv("TMPDIR", "/scratch".ljust(length, "x"))
        with patch("ray.init") as init:
            connect("local")
        assert init.call_args.kwargs.get("_temp_dir") == given
    monkeypatch.setenv("RAY_TMPDIR", "/scratch".ljust(40, "x"))
    with patch("ray.init") as init, pytest.raises(ValueError, match=r"RAY_TMPDIR /scratchx+ is too long: .* 39 bytes"):
        connect("local")
    assert not init.called


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_workers_trust_what_the_command_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, "some/model@main")
    monkeypatch.chdir(tmp_path)
    trust_code(["./folder"])
    with patch("ray.init") as init:
        connect("local")
    given = init.call_args.kwargs["runtime_env"]
    assert given == {"env_vars": worker_variables()}
    seen = ray.remote(lambda: os.environ[TRUST_VARIABLE]).options(runtime_env=given)
    assert ray.get(seen.remote()) == f"some/model@main,{tmp_path}/folder"

"""A local Ray whose processes come up too late is started again; no other failure is."""

from __future__ import annotations

import inspect
import warnings
from unittest.mock import patch

import lance
import pytest
from ray._private.authentication.authentication_token_setup import _warn_token_auth_disabled, _warn_token_auth_enabled
from ray.data._internal.execution.operators import actor_pool_map_operator

from diffretriever.pipelines.cluster import connect

NO_HEAD = RuntimeError("Timed out waiting for file /tmp/ray/session/gcs_server_port_1")
LATE = Exception("The current node timed out during startup. This could happen because the raylet failed to start.")


def test_a_late_start_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    with patch("ray.init", side_effect=[LATE, NO_HEAD, None]) as init:
        connect("local", num_cpus=2)
    assert init.call_count == 3
    assert capsys.readouterr().err.count("starting it again") == 2


def test_it_ends_with_what_ray_said() -> None:
    with patch("ray.init", side_effect=LATE) as init, pytest.raises(Exception, match="timed out during startup"):
        connect("local")
    assert init.call_count == 4


def test_other_failures_are_told_at_once() -> None:
    with patch("ray.init", side_effect=ConnectionError("nobody there")) as init, pytest.raises(ConnectionError):
        connect("127.0.0.1:1")
    assert init.call_count == 1


def test_a_long_tmpdir_is_too_long_for_rays_sockets_so_ray_gets_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for length, given in ((39, None), (40, "/tmp/ray")):
        monkeypatch.setenv("TMPDIR", "/scratch".ljust(length, "x"))
        with patch("ray.init") as init:
            connect("local")
        assert init.call_args.kwargs.get("_temp_dir") == given


def test_a_long_ray_tmpdir_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/scratch".ljust(40, "x"))
    with patch("ray.init") as init, pytest.raises(ValueError, match=r"RAY_TMPDIR /scratchx+ is too long: .* 39 bytes"):
        connect("local")
    assert not init.called


def test_what_nobody_can_do_anything_about_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    """Ray's own sentences, as its code has them: one that is worded anew would be said again."""
    with patch("ray.init"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        connect("local")
        lance.__warn_on_fork()
        warnings.warn("The minimum number of concurrent actors for 'x' is set to 4", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(each.message) for each in said] == ["another"]
    assert "The minimum number of concurrent actors" in inspect.getsource(actor_pool_map_operator)
    _warn_token_auth_enabled()
    assert not caplog.records
    _warn_token_auth_disabled()
    assert "Anyone with network access" in caplog.text

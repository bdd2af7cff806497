"""A local Ray whose processes come up too late is started again; no other failure is."""

from __future__ import annotations

from unittest.mock import patch

import pytest

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

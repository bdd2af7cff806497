"""The Python front without Ray."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.pipelines.cluster.is_ray_running", lambda: False)
    monkeypatch.delattr("diffretriever.pipelines.ray_executor.ray_session")

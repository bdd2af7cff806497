"""`python -m serve` told to end: who is being answered is answered, and the status is 0."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from diffretriever.index.table import PassageIndex
from diffretriever.serve.front import ENVIRONMENT
from serve.__main__ import main
from tests.serve.asking import LIMIT_S, SETTINGS, in_threads, wait_until
from tests.serving.serving_cases import QUERIES

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=LIMIT_S).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals and variables are as before, afterwards."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_application_goes_before_the_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray shuts proxies and replicas down together, and what is being answered would be lost."""
    done: list[str] = []
    running = SimpleNamespace(applications={"diffretriever": SimpleNamespace(status="RUNNING")})
    fake = SimpleNamespace(
        start=lambda http_options: done.append(f"start {http_options['port']}"),
        RunTarget=lambda application, name, route_prefix: application,
        run_many=lambda targets, wait_for_applications_running: done.extend(targets),
        status=lambda: running,
        delete=lambda name: done.append(f"delete {name}"),
        shutdown=lambda: done.append("shutdown"),
    )
    monkeypatch.setattr("ray.serve", fake)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.shutdown", lambda: done.append("end of Ray"))
    monkeypatch.setattr("diffretriever.pipelines.cluster.connect", lambda address: done.append(f"connect {address}"))
    monkeypatch.setattr("diffretriever.serve.app.search_app", lambda settings: f"application of {settings['index']}")
    monkeypatch.setattr("signal.pause", lambda: signal.raise_signal(signal.SIGTERM))
    main(["index=i", "port=8001"])
    up = ["connect local", "start 8001", "application of i"]
    assert done == [*up, "delete diffretriever", "shutdown", "end of Ray"]


@pytest.mark.cluster
def test_it_answers_what_it_is_working_on_and_ends_well(full: bool, request: pytest.FixtureRequest) -> None:
    if not full:
        pytest.skip("starts a Ray of its own: --full")
    request.getfixturevalue("no_cluster")
    index: PassageIndex = request.getfixturevalue("index")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = [f"{name}={value}" for name, value in SETTINGS.items() if name != "limits.timeout_s"]
    answers: list[httpx2.Response] = []

    def ask(_: int) -> None:
        """Go on until refused."""
        while not answers or answers[-1].status_code == 200:
            answers.append(httpx2.post(f"{url}/search", json={"query": QUERIES * 8}, timeout=LIMIT_S))

    def end() -> None:
        wait_until(lambda: len(answers) > 6)
        server.send_signal(signal.SIGTERM)

    command = ["python", "-m", "serve", f"index={index.uri}", f"port={port}", *settings]
    with subprocess.Popen(command, cwd=ROOT) as server:
        try:
            wait_until(lambda: is_ready(url) or server.poll() is not None)
            ending = threading.Thread(target=end)
            ending.start()
            in_threads(ask, 3)
            ending.join()
            assert server.wait() == 0
        finally:
            server.kill()
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} == {503}
    assert {answer.headers["content-type"] for answer in refused} == {"application/problem+json"}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)


@pytest.mark.parametrize(("setting", "message"), [("index", "NAME=VALUE"), ("port=x", "port"), ("indx=i", "index")])
def test_settings_that_are_none_are_named(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        main([setting])

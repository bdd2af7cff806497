"""`python -m serve` told to end: who is being answered is answered, and the status is 0."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from diffretriever.index.table import PassageIndex
from serve.__main__ import main
from tests.serve.asking import LIMIT_S, SETTINGS, in_threads, wait_until
from tests.serving.serving_cases import QUERIES

ROOT = Path(__file__).resolve().parents[2]


def command(*settings: str) -> list[str]:
    return ["python", "-m", "serve", *settings]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=LIMIT_S).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.cluster
@pytest.mark.usefixtures("no_cluster")
def test_it_answers_what_it_is_working_on_and_ends_well(index: PassageIndex) -> None:
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

    with subprocess.Popen(command(f"index={index.uri}", f"port={port}", *settings), cwd=ROOT) as server:
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


def test_a_mistake_is_one_line_and_status_1() -> None:
    done = subprocess.run(
        [sys.executable, *command("indx=i")[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Did you mean 'index'" in done.stderr


@pytest.mark.parametrize(("setting", "message"), [("index", "NAME=VALUE"), ("port=x", "port")])
def test_settings_that_are_none_are_named(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        main([setting])

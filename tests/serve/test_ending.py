"""Start, errors and shutdown of `python -m serve`."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from diffretriever.index.table import PassageIndex
from diffretriever.serve.__main__ import _settings, explain, main
from diffretriever.serve.starting import ENVIRONMENT, starting
from diffretriever.serving.guard import KEY_VARIABLES
from tests.ports import free_port, status_at
from tests.serve.asking import LIMIT_S, SETTINGS, in_threads, wait_until
from tests.serving.serving_cases import QUERIES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.cluster
def test_sigterm_finishes_the_running_requests(full: bool, request: pytest.FixtureRequest) -> None:
    if not full:
        pytest.skip("starts a Ray of its own: --full")
    request.getfixturevalue("no_cluster")
    index: PassageIndex = request.getfixturevalue("index")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = [f"{name}={value}" for name, value in SETTINGS.items() if name != "limits.timeout_s"]
    answers: list[httpx2.Response] = []

    def ask(_: int) -> None:
        while not answers or answers[-1].status_code == 200:
            answers.append(httpx2.post(f"{url}/search", json={"query": QUERIES * 8}, timeout=LIMIT_S))

    def end() -> None:
        wait_until(lambda: len(answers) > 6)
        server.send_signal(signal.SIGTERM)

    command = ["python", "-m", "serve", f"index={index.uri}", f"port={port}", *settings]
    with subprocess.Popen(command, cwd=ROOT) as server:
        try:
            wait_until(lambda: status_at(f"{url}/readyz") == 200 or server.poll() is not None)
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


def test_help_describes_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0].strip() for line in lines if re.match(r"  [\w.]+: \w", line)]
    assert sorted(names) == sorted([*_settings(), *KEY_VARIABLES])
    assert max(map(len, lines)) <= 120


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:

    def connect(address: str) -> None:
        pytest.fail(f"Ray was started at {address}")

    monkeypatch.setattr("diffretriever.pipelines.cluster.connect", connect)
    monkeypatch.setattr("diffretriever.serve.__main__._end_ray", lambda: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["index"], "index: write settings as NAME=VALUE, such as index=indexes/mine"),
        (["index=i", "port=x"], "port: Input should be a valid integer, unable to parse string as an integer"),
        (["index=i", "port=0"], "port: Input should be greater than or equal to 1"),
        (["indx=i", "port=PORT"], "unknown setting 'indx'. Did you mean 'index'? Known: adapter, backbone, "),
        (["index=i", "limits.k=9"], "unknown setting 'limits.k'. Did you mean 'limits.max_k'? Known: adapter, "),
        (["index=i", "what=9"], "unknown setting 'what'. Known: adapter, backbone, "),
        (["port=PORT"], "index is required"),
        (["index=/none", "port=PORT"], "no index at /none: make one with"),
        (["index=/none", "port=PORT", "host=nowhere.invalid"], "host=nowhere.invalid is not an address: set"),
    ],
)
def test_mistakes_are_one_line_before_ray_starts(settings: list[str], message: str, no_ray: None) -> None:
    settings = [setting.replace("PORT", str(free_port())) for setting in settings]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (its text is looked at)
        main(settings)
    text = explain(caught.value)
    assert text.startswith(message)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("address", "haproxy", "refused"),
    [
        ([], "0", None),
        (["host=::1"], "0", None),
        ([], "1", "no API key: set DIFFRETRIEVER_API_KEY"),
        (["open=false"], "0", "no API key"),
        (["host=0.0.0.0"], "0", "no API key"),
        (["host=0.0.0.0", "open=true"], "0", None),
    ],
)
def test_a_server_on_the_network_needs_a_key(
    index: PassageIndex, monkeypatch: pytest.MonkeyPatch, address: list[str], haproxy: str, refused: str | None
) -> None:
    def started(_: object) -> None:
        raise ValueError("Ray is to be started")

    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    monkeypatch.setattr("diffretriever.serve.__main__._start_ray", started)
    monkeypatch.setattr("diffretriever.serve.__main__._end_ray", lambda: None)
    arguments = [f"index={index.uri}", f"port={free_port()}", *address]
    with pytest.raises(ValueError, match=refused or "Ray is to be started"):
        main(arguments)
    monkeypatch.setenv("DIFFRETRIEVER_READ_KEY", "a-key-for-the-tests")
    with pytest.raises(ValueError, match="Ray is to be started"):
        main(arguments)


def test_an_unusable_index_is_rejected_before_ray_starts(index: PassageIndex, no_ray: None, tmp_path: Path) -> None:
    copies = tmp_path / "a", tmp_path / "b"
    for copy, files in zip(copies, ("_versions/*.manifest", "data/*.lance"), strict=True):
        shutil.copytree(index.uri, copy)
        for file in copy.glob(f"passages.lance/{files}"):
            file.write_text("x")
    settings = [(str(copy), "selector=rule") for copy in copies]
    settings += [(index.uri, "selector=/no/file"), (index.uri, "backbone=/no/folder")]
    for path, setting in settings:
        with pytest.raises(ValueError, match=r"/no/|damaged") as caught:
            main([f"index={path}", f"port={free_port()}", setting])
        assert "\n" not in explain(caught.value)


def test_a_used_port_is_rejected_even_if_its_server_shares_it(no_ray: None) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(ValueError, match=f"port {port} of {host} is in use.* such as port={port + 1}"):
                main(["index=i", f"host={host}", f"port={port}"])


def test_requests_during_start_up_get_503_and_ray_can_take_the_port() -> None:
    port = free_port()
    with starting("127.0.0.1", port), socket.socket() as proxy:
        proxy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        proxy.bind(("127.0.0.1", port))
        with pytest.raises(ValueError, match="is in use"), starting("127.0.0.1", port):
            pass
        wait_until(lambda: status_at(f"http://127.0.0.1:{port}/") == 503)
        answer = httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=LIMIT_S)
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.json()["detail"] == "the server is starting"
    assert int(answer.headers["retry-after"]) > 0
    with starting("127.0.0.1", port):
        pass

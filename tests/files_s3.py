"""An object store for tests: moto's S3 server, started once a session, and a bucket for each test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest


def _server() -> list[str] | None:
    """Return the command of the server, which has an environment of its own."""
    own = Path(__file__).resolve().parents[1] / ".venv-s3" / "bin" / "python"
    if own.exists():
        return [str(own), "-m", "moto.server"]
    found = shutil.which("moto_server")
    return None if found is None else [found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a store without content."""
    server = _server()
    if server is None:
        pytest.skip("no S3 server: pip install 'moto[server]' into .venv-s3")
    port = _free_port()
    with subprocess.Popen(
        [*server, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while True:
                assert process.poll() is None, "moto_server ended by itself"
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket that this process, and those it starts, can reach."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"b-{uuid.uuid4().hex}"
    urlopen(Request(f"{s3_endpoint}/{name}", method="PUT")).close()
    return f"s3://{name}"

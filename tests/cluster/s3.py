"""An S3 endpoint for tests: moto's server in a process and an environment of its own, with a fault proxy before it."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.fault_proxy import FaultProxy
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "bucket"
_PYTHON = ROOT / ".venv-s3" / "bin" / "python"
_REGION = "us-east-1"


@dataclass(frozen=True)
class S3:
    """A running endpoint with an empty bucket."""

    port: int
    """Of the endpoint itself, behind the proxy."""
    proxy: FaultProxy
    environment: dict[str, str]
    """Variables by which Lance, pyarrow and boto reach it."""

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Let this process, and those it starts, reach the endpoint."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            yield

    def make_bucket(self) -> str:
        """Make a bucket of its own and return its URI."""
        name = f"b-{uuid.uuid4().hex}"
        _make_bucket(self.port, name)
        return f"s3://{name}"

    def uri(self, path: str) -> str:
        """Return the URI of a key or a prefix."""
        return f"s3://{BUCKET}/{path}"


@contextmanager
def s3_endpoint(log: Path) -> Iterator[S3]:
    """Start an endpoint with its proxy; end both.

    Args:
        log: file for what the endpoint says.

    Raises:
        RuntimeError: moto is not installed, or does not start.
    """
    if not _PYTHON.exists():
        raise RuntimeError(f"no {_PYTHON}, where the tests' S3 endpoint is: run `make .venv-s3/.installed`")
    port = free_port()
    command = [str(_PYTHON), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    others = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    with log.open("wb") as stream:
        server = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=others, cwd=log.parent)
    try:
        _wait_for(port, server, log)
        _make_bucket(port, BUCKET)
        proxy = FaultProxy(port)
        try:
            yield S3(port, proxy, _variables(proxy.url))
        finally:
            proxy.close()
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    while server.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the S3 endpoint did not start:\n{log.read_text()}")


def _make_bucket(port: int, name: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{name}")
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def _variables(url: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": _REGION,
        "AWS_DEFAULT_REGION": _REGION,
        # Lance's store refuses plain HTTP otherwise.
        "AWS_ALLOW_HTTP": "true",
        # Where keys are refused, pyarrow would ask Amazon's address for others.
        "AWS_EC2_METADATA_DISABLED": "true",
    }

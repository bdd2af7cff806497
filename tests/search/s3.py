"""An S3 endpoint on this machine, for tests of indexes on object stores."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BUCKET = "bucket"
_PYTHON = Path(__file__).resolve().parents[2] / ".venv-s3" / "bin" / "python"


@contextmanager
def s3_endpoint() -> Iterator[None]:
    """Run moto_server, and have this process's environment, which all of its children share, point to its bucket."""
    if not _PYTHON.exists():
        pytest.skip(f"no {_PYTHON}, where the tests' S3 endpoint is")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [str(_PYTHON), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _make_bucket(port)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL", address)
                patch.setenv("AWS_ALLOW_HTTP", "true")
                patch.setenv("AWS_REGION", "us-east-1")
                patch.setenv("AWS_ACCESS_KEY_ID", "test")
                patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
                patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
                yield
        finally:
            process.kill()


def _make_bucket(port: int) -> None:
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("PUT", f"/{BUCKET}")
            connection.getresponse().read()
        except OSError:
            time.sleep(0.2)
        else:
            return
        finally:
            connection.close()

"""Starting the warm Python, and making Ray start its workers by it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_EXECUTABLE = "WARM_PYTHON"


@contextmanager
def warm_python() -> Iterator[dict[str, str]]:
    """Run a server; give the variables by which `python`, and the workers of a Ray that begins now, are its forks."""
    with tempfile.TemporaryDirectory(prefix="warm-", dir="/tmp") as folder:
        place = Path(folder)
        script = place / "python"
        lines = [
            f"#!{sys.executable} -IS",
            "import sys",
            f"sys.path.append({str(_HERE)!r})",
            "from warm_client import main",
            f"main({str(place / 'server')!r}, {sys.executable!r})",
        ]
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o755)
        command = [sys.executable, str(_HERE / "warm_server.py"), str(place / "server")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield {
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": ":".join(filter(None, [os.environ.get("PYTHONPATH"), str(_HERE)])),
                "RAY_RUNTIME_ENV_HOOK": "warm_python.with_warm_workers",
                _EXECUTABLE: str(script),
            }
            server.stdin.close()


def with_warm_workers(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Return what `ray.init` is to take as `runtime_env`; Ray calls this by its name in RAY_RUNTIME_ENV_HOOK."""
    return {**(runtime_env or {}), "py_executable": os.environ[_EXECUTABLE]}

"""Starting the warm Python, and making Ray start its workers by it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_EXECUTABLE = "WARM_PYTHON"
SERVER = "WARM_SERVER"
"""The variable with the process that is the parent of all forks."""
_FIRST = "WARM_FIRST"
"""The variable with the executable of the server that the test processes themselves are forks of."""


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
        # In a fork of the first server, where there is one, all is loaded at once.
        python = os.environ.get(_FIRST, sys.executable)
        command = [python, str(_HERE / "warm_server.py"), str(place / "server")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # Arrow would start a thread, which may hold a lock when the server forks.
        environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            process = int(server.stdout.readline())
            yield {
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": ":".join(filter(None, [os.environ.get("PYTHONPATH"), str(_HERE)])),
                "RAY_RUNTIME_ENV_HOOK": "warm_python.with_warm_workers",
                _EXECUTABLE: str(script),
                SERVER: str(process),
            }
            server.stdin.close()


def warm_test_processes(specs: Sequence[str], ended: Callable[[Callable[[], None]], object]) -> list[str]:
    """Return how pytest-xdist is to start its processes so that they are forks of one server; start it.

    Args:
        specs: as many as there are processes.
        ended: is given what ends the server.
    """
    server = ExitStack()
    os.environ[_FIRST] = server.enter_context(warm_python())[_EXECUTABLE]
    ended(server.close)
    return [f"popen//python={os.environ[_FIRST]}" for _ in specs]


def with_warm_workers(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Return what `ray.init` is to take as `runtime_env`; Ray calls this by its name in RAY_RUNTIME_ENV_HOOK."""
    return {**(runtime_env or {}), "py_executable": os.environ[_EXECUTABLE]}

"""Starts Ray's own programs in Python, and its workers, in the warm Python.

Ray runs `setup_worker.py` before each worker, which imports all of Ray only to start another Python: it is left out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language=PYTHON"
_OWN = (
    "/ray/_private/log_monitor.py",
    "/ray/autoscaler/_private/monitor.py",
    "/ray/dashboard/agent.py",
    "/ray/dashboard/dashboard.py",
    "/ray/_private/runtime_env/agent/main.py",
)


def _start_worker() -> None:
    arguments = sys.orig_argv[2:]
    if _LANGUAGE not in arguments:
        return
    # The server of Ray's clients is started without one.
    given = [text for text in arguments if text.startswith(_CONTEXT)]
    context = json.loads(given[0].removeprefix(_CONTEXT)) if given else {}
    variables = context.get("env_vars", {})
    # That of a submitted job's supervisor is this interpreter.
    is_ours = context.get("py_executable", sys.executable) in (sys.executable, os.environ["WARM_PYTHON"])
    # A submitted job begins in its folder.
    enter, *folder, then = context.get("command_prefix") or ("cd", ".", "&&")
    enters = (enter, then) == ("cd", "&&") and len(folder) == 1 and Path(folder[0]).is_dir()
    if not is_ours or not enters or "${" in str(variables):
        return
    os.environ.update(variables)
    os.chdir(folder[0])
    rest = [text for text in arguments if text not in (*given, _LANGUAGE)]
    os.execv(os.environ["WARM_PYTHON"], [os.environ["WARM_PYTHON"], *rest])


def _start_own() -> None:
    arguments = [text for text in sys.orig_argv[1:] if text != "-u"]
    os.execv(os.environ["WARM_PYTHON"], [os.environ["WARM_PYTHON"], *arguments])


_PROGRAM = next((text for text in sys.orig_argv[1:] if not text.startswith("-")), "")
if "WARM_PYTHON" in os.environ:
    if Path(_PROGRAM).name == "setup_worker.py":
        _start_worker()
    # The autoscaler of a fake cluster is the parent of its machines.
    elif _PROGRAM.endswith(_OWN) and "RAY_FAKE_CLUSTER" not in os.environ:
        _start_own()

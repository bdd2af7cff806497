"""Starts a worker of Ray in the warm Python at once.

Ray runs `setup_worker.py` before each worker, which imports all of Ray only to start another Python.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language=PYTHON"


def _start_worker() -> None:
    arguments = sys.orig_argv[2:]
    given = [text for text in arguments if text.startswith(_CONTEXT)]
    if len(given) != 1 or _LANGUAGE not in arguments:
        return
    context = json.loads(given[0].removeprefix(_CONTEXT))
    variables = context["env_vars"]
    is_warm = context["py_executable"] == os.environ["WARM_PYTHON"]
    if not is_warm or context["command_prefix"] or "${" in str(variables):
        return
    os.environ.update(variables)
    rest = [text for text in arguments if text not in (*given, _LANGUAGE)]
    os.execv(context["py_executable"], [context["py_executable"], *rest])


if len(sys.orig_argv) > 1 and Path(sys.orig_argv[1]).name == "setup_worker.py" and "WARM_PYTHON" in os.environ:
    _start_worker()

"""One job, timed from the outside, with the processor's time of all processes that it starts."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time

from benchmarks.measuring import serve_child
from diffretriever.schemas.base import Model

_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl: orphans become this process's children, so that their time is counted, too."""


class Took(Model):
    """What a command took."""

    seconds: float
    """From its start to its end."""
    cpu_seconds: float
    """Of the processor, by it and by all that it started."""


def took(command: list[str], root: str) -> Took:
    """Run a command in the checkout at `root`, and wait for all processes that it leaves behind.

    Raises:
        RuntimeError: it failed.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    # `in_child` has set it: a job is run as a person would.
    given = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH")}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=root, env=given, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    _wait_for_orphans()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(seconds=seconds, cpu_seconds=used.ru_utime + used.ru_stime)


def _wait_for_orphans() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    serve_child({"took": took})

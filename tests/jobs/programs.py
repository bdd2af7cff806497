"""Jobs run as programs, in the process of the tests: importing torch and Ray takes longer than most of them do."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from diffretriever.core import progress

JOBS = Path(__file__).resolve().parents[2] / "jobs"


class Ended(NamedTuple):
    """A job that has ended."""

    status: int
    stdout: str
    stderr: str


def run_job(name: str, *arguments: object, folder: Path | None = None) -> Ended:
    """Run a job's file with a command line.

    Args:
        name: of the file in `jobs/`, without `.py`.
        arguments: of the command line.
        folder: working directory.
    """
    file = str(JOBS / f"{name}.py")
    out, err = io.StringIO(), io.StringIO()
    with (
        own_process(),
        contextlib.chdir(folder or Path.cwd()),
        patch.object(sys, "argv", [file, *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_path(file, run_name="__main__")
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    return Ended(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Put `jobs/` on the path in the block, and restore after it all that a job sets for its process."""
    path, modules, thresholds = [*sys.path], {*sys.modules}, gc.get_threshold()
    handler, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    sys.path.insert(0, str(JOBS))
    with patch.dict(os.environ), patch.object(progress, "_shows", new=False):
        yield
    sys.path[:], sys.excepthook = path, hook
    gc.set_threshold(*thresholds)
    signal.signal(signal.SIGTERM, handler)
    for name in {*sys.modules} - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(JOBS)):
            del sys.modules[name]

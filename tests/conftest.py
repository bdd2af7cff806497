"""What every folder of tests shares."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models as small as the tests' only wait for their threads on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _own_ray() -> Iterator[None]:
    """A place for Ray's files that no other session has: jobs use the cluster whose address lies there."""
    # Ray's sockets lie below it, and their paths may have a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(folder)
    yield
    if before is None:
        del os.environ["RAY_TMPDIR"]
    else:
        os.environ["RAY_TMPDIR"] = before
    shutil.rmtree(folder, ignore_errors=True)

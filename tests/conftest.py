"""What every folder of tests shares."""

from __future__ import annotations

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
    """A place for Ray's files that no other session has: jobs use the cluster whose address lies there.

    Ray runs its workers at the lowest priority but four: beside the tests of another session they would take minutes
    to start.
    """
    # Ray's sockets lie below it, and their paths may have a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_worker_niceness", "0")
        yield
    shutil.rmtree(folder, ignore_errors=True)

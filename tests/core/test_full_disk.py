"""A full disk leaves nothing that looks whole, ends a job with one line, and stops no search.

What no disk is needed for is done with a limit on the size of files: writers are told EFBIG in place of ENOSPC.
"""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from diffretriever.core import progress
from diffretriever.core.full_disk import full_disk
from diffretriever.index.derived import DerivedFolder
from diffretriever.index.writer import Committer, write_block
from diffretriever.schemas.search import SearchJob
from diffretriever.search.bm25 import Bm25Search, bm25_folder
from tests.index.compressed_cases import block, fill

FULL = OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file of this process may become larger than so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Bytecode that Python keeps of a module would be cut off without an error, and later processes trip over it.
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = keeps_none


def _an_artefact(folder: Path) -> Callable[[], object]:
    def write() -> None:
        with DerivedFolder(str(folder), "codes/key").build() as made:
            np.save(made / "numbers.npy", np.arange(1000))

    return write


def _a_block(folder: Path) -> Callable[[], object]:
    index = fill(str(folder / "index"), 4)
    return lambda: write_block(index.uri, block([f"n{i}" for i in range(40)], 1))


def _a_commit(folder: Path) -> Callable[[], object]:
    index = fill(str(folder / "index"), 4)
    receipt = write_block(index.uri, block(["n"], 1))
    return lambda: Committer(index).commit({"key": receipt}, [])


WRITERS = [_an_artefact, _a_block, _a_commit]


@pytest.mark.parametrize("ready", WRITERS, ids=lambda each: each.__name__.lstrip("_"))
def test_a_full_disk_leaves_no_partial_files(
    ready: Callable[[Path], Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    write = ready(tmp_path)
    with small_files(100), pytest.raises((OSError, ValueError)) as caught:
        write()
    assert full_disk(caught.value) is not None
    assert not [*tmp_path.rglob(".*.tmp")]
    # The same again, where there is room.
    write()


class WrappedError(Exception):
    """As Ray wraps what a task raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"ray::task()\nOSError: {cause}")
        self.cause = cause


TOLD = {
    "python": FULL,
    "quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "lance": OSError("LanceError(IO): No space left on device (os error 28), /home/lance/writer.rs:254:9"),
    "numpy": OSError("2000000 requested and 524288 written"),
    "wrapped": WrappedError(FULL),
}


@pytest.fixture
def entry(jobs_path: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What every job begins with."""
    monkeypatch.setattr(progress, "_shows", False)
    monkeypatch.setattr(sys, "argv", ["search.py", "--index", "some/index", "--query", "x"])
    return import_module("_entry")


@pytest.mark.parametrize("error", TOLD.values(), ids=TOLD)
def test_a_full_disk_ends_a_job_with_one_line(
    error: Exception, entry: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(config: SearchJob) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        entry.run(SearchJob, main)
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    assert "run the same command to resume" in told


def test_a_search_works_if_its_files_cannot_be_written(tmp_path: Path) -> None:
    index, other = fill(str(tmp_path / "index"), 20), fill(str(tmp_path / "other"), 20)
    # What is compiled is kept in files, too.
    Bm25Search(other).search(["text"], 3)
    with small_files(100), pytest.warns(UserWarning, match=r"cannot be stored there .*too large"):
        found = Bm25Search(index).search(["text"], 3)
    assert bm25_folder(index).size() is None
    assert len(found[0]) == 3

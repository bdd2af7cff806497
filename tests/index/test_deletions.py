"""Checksums of deletion files, which Lance does not have."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from diffretriever.index.table import PassageIndex
from diffretriever.schemas.inspect import Verification
from diffretriever.search.inspection import inspect
from tests.index.compressed_cases import add, fill
from tests.index.index_cases import compact

KIND = "files of deleted rows are damaged"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 passages in a fragment, of which one was replaced and, in commits of their own, two were deleted."""
    index = fill(str(tmp_path_factory.mktemp("deletions") / "index"), 40)
    add(index, ["p3"], 7, replaced=["p3"], text="another text")
    index.delete(["p20"])
    index.delete(["p31"])
    return Path(index.uri)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "index"
    shutil.copytree(made, copy)
    return copy


def verified(folder: Path) -> Verification:
    verification = inspect(PassageIndex.open(str(folder)), check=True).verification
    assert verification is not None
    return verification


def found(folder: Path) -> list[str]:
    """The first places of the problem."""
    return [first for problem in verified(folder).problems if problem.kind == KIND for first in problem.first]


def in_use(folder: Path) -> Path:
    fragment = PassageIndex.open(str(folder)).dataset.get_fragments()[0]
    return folder / "passages.lance" / fragment.metadata.deletion_file.path(fragment.fragment_id)


def records(folder: Path) -> list[Path]:
    return sorted((folder / "deletions").iterdir())


def test_a_deletion_file_with_another_row_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a changed bit would have it: as many rows, all of them whole."""
    file = in_use(folder)
    with ipc.open_file(file) as reader:
        rows = reader.read_all()
    changed = pa.array([row + (row == 20) for row in rows.column(0).to_pylist()], rows.schema.field(0).type)
    with ipc.new_file(file, rows.schema) as writer:
        writer.write_table(pa.table([changed], schema=rows.schema))
    with pytest.raises(
        ValueError, match=f"is damaged: .*{file.name} does not match its checksum.*restore it from a copy"
    ):
        PassageIndex.open(str(folder))
    # On an object store, files are not read before they are needed.
    monkeypatch.setattr("diffretriever.index.table.refuse_wrong_deletions", lambda *_: None)
    ids = PassageIndex.open(str(folder)).dataset.to_table(["id"]).column("id").to_pylist()
    assert ("p20" in ids, "p21" in ids) == (True, False)
    assert found(folder) == [f"_deletions/{file.name}"]


def test_checksums_are_removed_with_their_deletion_files(folder: Path) -> None:
    index = PassageIndex.open(str(folder))
    assert (len(records(folder)), verified(folder).problems, verified(folder).without_checksums) == (3, [], 0)
    index.forget_versions(timedelta(0))
    assert len(records(folder)) == 1
    index.delete(["p32"])
    compact(index, timedelta(0))
    assert (records(folder), verified(folder).problems) == ([], [])
    index.delete(["p33"])
    assert (verified(folder).problems, verified(folder).without_checksums) == ([], 0)
    shutil.rmtree(folder / "deletions")
    assert (verified(folder).problems, verified(folder).without_checksums) == ([], 1)

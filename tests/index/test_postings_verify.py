"""The check of an index finds damaged postings, and names the passage or the fragment that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.schemas.inspect import Problem
from diffretriever.search.inspection import inspect
from diffretriever.search.sparse.postings import POSTINGS, build_postings
from diffretriever.search.sparse.segment import DTYPES
from tests.index.damaged_cases import resealed
from tests.index.test_index_verify import fill, good_row

IDS = ["a", "bb", "ccc"]


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    made = fill(tmp_path, [good_row(i) for i in IDS])
    made.compact()
    build_postings(made)
    return made


def folder(index: PassageIndex) -> Path:
    return POSTINGS.folder_of(index, index.fragments()[0]).path


def problems_of(index: PassageIndex) -> list[Problem]:
    verification = inspect(index, check=True).verification
    assert verification is not None
    return verification.problems


def test_sound_postings(index: PassageIndex) -> None:
    report = inspect(index, check=True)
    assert report.verification is not None
    assert (report.verification.postings, report.verification.problems) == (6, [])
    contents = report.postings
    assert contents is not None
    assert (contents.fragments, contents.missing_fragments, contents.missing_rows) == (1, 0, 0)
    assert contents.bytes == sum(file.stat().st_size for file in folder(index).rglob("*") if file.is_file())
    index.delete(["bb"])
    report = inspect(index, check=True)
    assert report.verification is not None
    assert (report.verification.postings, report.verification.problems) == (4, [])


def test_fragments_without_postings_are_counted(tmp_path: Path) -> None:
    report = inspect(fill(tmp_path, [good_row(i) for i in IDS]), check=True)
    assert report.verification is not None
    assert (report.verification.postings, report.verification.problems) == (0, [])
    assert report.postings is not None
    assert (report.postings.missing_fragments, report.postings.missing_rows, report.postings.bytes) == (3, 3, 0)


@pytest.mark.parametrize(
    ("name", "position", "value", "ids"),
    [("weights", 1, 0.75, ["bb"]), ("rows", 0, 1, ["a", "bb"]), ("terms", 1, 7, IDS)],
)
def test_postings_of_other_impacts(name: str, position: int, value: float, ids: list[str], index: PassageIndex) -> None:
    """Sound files, checksums included, that say something else than the table."""
    changed = np.fromfile(folder(index) / f"{name}.bin", DTYPES[name])
    changed[position] = value
    changed.tofile(folder(index) / f"{name}.bin")
    resealed(folder(index))
    (problem,) = problems_of(index)
    assert (problem.kind, problem.first) == ("postings and impacts differ", ids)


def test_files_of_other_passages(index: PassageIndex) -> None:
    np.array([0, 1, 9], np.uint32).tofile(folder(index) / "fragment_rows.bin")
    resealed(folder(index))
    (problem,) = problems_of(index)
    assert "beyond those of the fragment" in problem.first[0]


def test_damaged_files(index: PassageIndex) -> None:
    file = folder(index) / "rows.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    (problem,) = problems_of(index)
    assert problem.kind == "the postings of a fragment are damaged"
    assert fragment_key(index.fragments()[0]) in problem.first[0]

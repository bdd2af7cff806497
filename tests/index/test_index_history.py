"""What an index says of its past and of its parts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diffretriever.index.history import column_bytes, history
from diffretriever.index.table import PassageIndex
from tests.index.test_index import add, manifest


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    return PassageIndex.create(str(tmp_path / "index"), manifest())


def test_every_version_says_what_made_it(index: PassageIndex) -> None:
    add(index, ["a", "b", "c", "e"])
    add(index, ["b", "c", "d"], replaced=["b", "c"], text="new")
    index.delete(["a", "nothing"])
    index.compact()
    said = [(v.change, v.rows, v.added, v.removed) for v in history(index) if v.change != "other"]
    assert said == [
        ("created", 0, 0, 0),
        ("appended", 4, 4, 0),
        ("replaced", 5, 3, 2),
        ("deleted", 4, 0, 1),
        ("compacted", 4, 0, 0),
    ]
    versions = history(index)
    assert [v.version for v in versions] == list(range(1, index.version + 1))
    assert [v.time for v in versions] == sorted(v.time for v in versions)
    assert abs(versions[-1].time - datetime.now(UTC)) < timedelta(minutes=5), "UTC, whatever the machine's zone"


def test_what_a_forgotten_version_would_have_said_is_left_open(index: PassageIndex) -> None:
    add(index, ["a", "b"])
    index.delete(["a"])
    index.dataset.cleanup_old_versions(older_than=timedelta(0))
    (only,) = history(index)
    assert (only.change, only.rows, only.removed) == ("deleted", 1, None)


def test_columns_make_up_the_data_files(index: PassageIndex) -> None:
    add(index, [f"passage-{n}" for n in range(3000)], text="some text")
    sizes, vector_bytes = column_bytes(index), 3000 * 2 * 4 * 2
    assert list(sizes) == index.dataset.schema.names
    assert vector_bytes <= sizes["reps"] < 1.2 * vector_bytes
    assert 0.9 * index.contents().bytes < sum(sizes.values()) <= index.contents().bytes

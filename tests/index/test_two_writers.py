"""Of two commits to one version of an index without a lock, only the first succeeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pytest

from diffretriever.index import compaction
from diffretriever.index.history import history
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from tests.index.compressed_cases import manifest
from tests.index.index_cases import compact, write_anew
from tests.index.test_index import add, block

CHANGED = r"another process changed .*finished work is kept: run the same command again"
Change = Callable[[PassageIndex], object]
"""What a writer does to the index that it has opened."""


def append(name: str) -> Change:
    return lambda index: add(index, [name, f"{name}2"], text=name)


def replace(*ids: str) -> Change:
    return lambda index: add(index, list(ids), replaced=list(ids), text="new")


CHANGES: dict[str, Change] = {
    "append": append("mine"),
    "replace one": replace("a"),
    "replace a fragment": replace("a", "b"),
    "delete": lambda index: index.delete(["c"]),
    "compact": compact,
    "write anew": write_anew,
}
OTHERS: dict[str, Change] = {**CHANGES, "append": append("theirs"), "replace the same passages": replace("b", "a")}
COMMITS = ("append", "replace one", "replace a fragment", "write anew")
"""Changes that are for the version they were made for, and no other."""


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    made = PassageIndex.create(str(tmp_path / "index"), manifest())
    add(made, ["a", "b"])
    add(made, ["c", "d"])
    add(made, ["e"])
    made.delete(["d"])
    return made


def texts(uri: str) -> list[tuple[str, str]]:
    return sorted(zip(*PassageIndex.open(uri).dataset.to_table(["id", "text"]).to_pydict().values(), strict=True))


def after(uri: str, change: Change) -> list[tuple[str, str]]:
    """What the index holds after `change` alone; the index is put back."""
    latest = PassageIndex.open(uri)
    change(PassageIndex.open(uri))
    expected = texts(uri)
    lance.dataset(latest.dataset.uri, version=latest.version).restore()
    return expected


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("mine", COMMITS)
@pytest.mark.parametrize("point", ["before the look", "before the commit"])
def test_the_second_of_two_commits_changes_nothing(index: PassageIndex, point: str, mine: str, other: str) -> None:
    expected = after(index.uri, OTHERS[other])
    index.refresh()
    commit = lance.LanceDataset.commit

    def second(*arguments: Any, **named: Any) -> Any:
        with patch.object(lance.LanceDataset, "commit", commit):
            OTHERS[other](PassageIndex.open(index.uri))
        return commit(*arguments, **named)

    if point == "before the look":
        OTHERS[other](PassageIndex.open(index.uri))
        second = commit
    with patch.object(lance.LanceDataset, "commit", second), pytest.raises(ValueError, match=CHANGED):
        CHANGES[mine](index)
    assert texts(index.uri) == expected
    if mine != "write anew":
        again = PassageIndex.open(index.uri)
        version = again.version
        CHANGES[mine](again)
        assert again.version == version + 1
        ids = [passage_id for passage_id, _ in texts(index.uri)]
        assert len(ids) == len(set(ids))


def test_delete_removes_a_passage_that_was_replaced_meanwhile(index: PassageIndex) -> None:
    stale = PassageIndex.open(index.uri)
    replace("a", "b")(index)
    assert stale.delete(["a", "nothing"]) == 1
    assert ("b", "new") in texts(index.uri)
    assert "a" not in dict(texts(index.uri))


@pytest.mark.parametrize("other", OTHERS)
def test_the_second_of_two_compactions_changes_nothing(index: PassageIndex, other: str) -> None:
    expected = after(index.uri, OTHERS[other])
    index.refresh()
    commit = compaction.commit

    def second(*arguments: Any) -> None:
        with patch.object(compaction, "commit", commit):
            OTHERS[other](PassageIndex.open(index.uri))
        commit(*arguments)

    with patch.object(compaction, "commit", second), pytest.raises(ValueError, match=CHANGED):
        compact(index)
    assert texts(index.uri) == expected


def test_compaction_rejects_fragments_that_changed(index: PassageIndex) -> None:
    (task,) = compaction.plan(index.dataset)
    result = compaction.execute(index.dataset.uri, task.text)
    append("new")(index)
    assert compaction.is_current(index.dataset, result)
    replace("a")(index)
    assert not compaction.is_current(index.dataset, result)
    version = index.version
    with pytest.raises(ValueError, match=CHANGED):
        index.commit_compaction([result])
    assert PassageIndex.open(index.uri).version == version


@pytest.mark.parametrize("emptied", [False, True])
def test_the_second_first_commit_to_an_empty_index_is_rejected(tmp_path: Path, emptied: bool) -> None:
    mine = PassageIndex.create(str(tmp_path / "index"), manifest())
    if emptied:
        add(mine, ["old"])
        mine.delete(["old"])
    theirs = PassageIndex.open(mine.uri)
    with patch("diffretriever.index.writer.lance.dataset", return_value=theirs.dataset):
        committers = [Committer(mine), Committer(theirs)]
        receipts = [write_block(mine.uri, block(["x", "y"])) for _ in committers]
        committers[0].commit({"key": receipts[0]}, [])
        with pytest.raises(ValueError, match=CHANGED):
            committers[1].commit({"key": receipts[1]}, [])
    assert [passage_id for passage_id, _ in texts(mine.uri)] == ["x", "y"]
    assert mine.manifest == PassageIndex.open(mine.uri).manifest
    last = history(mine)[-1]
    assert (last.change, last.rows, last.added, last.removed) == ("appended", 2, 2, 0)

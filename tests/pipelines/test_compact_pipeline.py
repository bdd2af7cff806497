"""Compaction by Ray: what a killed job has committed stays, another writer is refused, rows stay as they were."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import ray

from diffretriever.index import compaction
from diffretriever.index.history import history
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines import compact, index_writer, ray_executor
from diffretriever.pipelines.compact import compact_index
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.ray_executor import CompactionBeside
from tests.index.compressed_cases import add, compressed, fill, stored_vectors
from tests.pipelines.corpora import JobMaker, line, write_corpus

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


class KilledError(Exception):
    """Where a process would have been killed."""


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    """Fragments of 30 rows, each committed by itself."""
    with (
        patch.object(compaction, "_FEWEST_ROWS", 30),
        patch.object(compaction, "_FRAGMENT_BYTES", 1),
        patch.object(compact, "_TASKS_PER_COMMIT", 1),
    ):
        yield


def ids(index: PassageIndex) -> list[str]:
    return [i for batch in index.batches(["id"], 1000) for i in batch.column("id").to_pylist()]


def sizes(index: PassageIndex) -> list[int]:
    return [fragment.count_rows() for fragment in index.fragments()]


def dying_after(commits: int) -> Any:
    """Make the process die when it would commit once more."""
    commit, done = PassageIndex.commit_compaction, list[int]()

    def commit_and(self: PassageIndex, results: list[str]) -> None:
        if len(done) == commits:
            raise KilledError
        commit(self, results)
        done.append(1)

    return patch.object(PassageIndex, "commit_compaction", commit_and)


@pytest.mark.parametrize("codec", [None, "product2"])
def test_a_killed_compaction_resumes(codec: str | None, tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), *[10] * 12)
    if codec is not None:
        compressed(index, codec)
        index.refresh()
    index.delete(["p0", "p119"])
    before, vectors, small = ids(index), stored_vectors(index), sizes(index)
    first, *others = compaction.plan(index.dataset)
    assert (len(others), sum(task.rows for task in (first, *others))) == (3, 118)
    with dying_after(1), pytest.raises(KilledError):
        compact_index(index)
    half = PassageIndex.open(index.uri)
    assert sizes(half) == [*small[len(first.fragments) :], first.rows]
    assert sorted(ids(half)) == sorted(before)

    with patch.object(PassageIndex, "commit_compaction", autospec=True, side_effect=_commit) as commits:
        compact_index(half)
    assert commits.call_count == 3, "what was joined is not joined again"
    assert sizes(half) == [task.rows for task in (first, *others)]
    done = PassageIndex.open(index.uri)
    assert ids(done) == before, "in the same order"
    assert np.array_equal(stored_vectors(done), vectors)
    assert (done.manifest, done.version) == (index.manifest, half.version)
    compact_index(done)
    assert done.version == half.version, "there is nothing left to do"


_commit = PassageIndex.commit_compaction


def test_of_two_concurrent_compactions_one_is_rejected(tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), *[10] * 6)
    before, vectors = ids(index), stored_vectors(index)

    def planned(dataset: Any) -> list[compaction.CompactionTask]:
        tasks = compaction.plan(dataset)
        with patch.object(compact, "plan", compaction.plan):
            compact_index(PassageIndex.open(index.uri))
        return tasks

    with (
        patch.object(compact, "plan", planned),
        pytest.raises(ValueError, match=r"another process changed .*finished work is kept"),
    ):
        compact_index(index)
    index.refresh()
    assert sizes(index) == [30, 30]
    assert ids(index) == before
    assert np.array_equal(stored_vectors(index), vectors)


def test_fragments_are_merged_while_blocks_are_committed(tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), *[10] * 6)
    beside = CompactionBeside(index, encoders=16)
    beside.step()
    assert [task.fragments for task in beside._running.values()] == [(0, 1, 2), (3, 4, 5)]
    add(index, [f"new{i}" for i in range(10)], seed=9, replaced=["p3"])
    expected = sorted(ids(index))
    ray.wait([*beside._running], num_returns=2)
    beside.step()
    assert sizes(index)[-1] == 30, "the second is joined"
    assert beside._running == {}, "the first changed, and is left for the end"
    assert sizes(index) == [9, 10, 10, 10, 30]
    assert sorted(ids(index)) == expected
    add(index, ["more"], seed=10)
    compact_index(index)
    assert sizes(index) == [30, 1, 39], "a small one that is alone stays"
    assert sorted(ids(PassageIndex.open(index.uri))) == sorted([*expected, "more"])


def test_a_failed_compaction_task_leaves_the_fragments(tmp_path: Path) -> None:
    index = fill(str(tmp_path / "index"), *[10] * 3)
    beside = CompactionBeside(index, encoders=1)
    tasks = compaction.plan(index.dataset)
    with patch.object(ray_executor, "plan", return_value=[task._replace(text="no task") for task in tasks]):
        beside.step()
    beside.finish()
    beside.step()
    assert beside._running == {}
    assert sizes(index) == [10, 10, 10]


def test_a_job_killed_while_compacting_compacts_when_it_resumes(tmp_path: Path, make_job: JobMaker) -> None:
    """The first attempt joins what it has committed while it goes on, and dies in the compaction at its end."""
    corpus = write_corpus(tmp_path / "corpus", [line(i) for i in range(200)])
    job = make_job(corpus, retriever="bm25", backbone=None, rows_per_block=8)
    step = CompactionBeside.step

    def patient(self: CompactionBeside) -> None:
        self.finish()
        step(self)

    with (
        patch.object(CompactionBeside, "step", patient),
        patch.multiple(index_writer, _COMMIT_EVERY_SECONDS=0.0, _COMMIT_SHARE=math.inf),
        patch.object(index_writer, "compact_index", side_effect=KilledError),
        pytest.raises(KilledError),
    ):
        encode_collection(job)
    index = PassageIndex.open(job.index)
    changes = [version.change for version in history(index)]
    assert "compacted" in changes[: len(changes) - changes[::-1].index("appended")], "before the last block"
    assert 1 < len(sizes(index)) < 25
    assert min(sizes(index)) < 15 <= max(sizes(index))

    again = encode_collection(job)
    assert (again.encoded, again.already_there, again.rows) == (0, 200, 200)
    index.refresh()
    assert sum(size < 15 for size in sizes(index)) <= 1
    assert sorted(ids(index)) == sorted(f"p{i}" for i in range(200))

"""The index: versions, deletes, replacement, exactly-once commits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from diffretriever.collections import Passage
from diffretriever.index import compaction
from diffretriever.index.history import column_bytes, history
from diffretriever.index.manifest import check_same
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, WriterLock, join_columns, text_table, write_block
from diffretriever.schemas.retriever import BackboneConfig, PooledRetriever, TextConfig
from diffretriever.vectors.representations import Representations
from tests.index.compressed_cases import manifest, representations, stored_vectors
from tests.index.index_cases import compact, ids_of


def block(ids: list[str], text: str = "some text", collection: str = "c") -> pa.Table:
    passages = [Passage(i, "", text) for i in ids]
    return join_columns(text_table(passages, collection), representations(len(ids), seed=0).to_arrow())


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    return PassageIndex.create(str(tmp_path / "index"), manifest())


def add(index: PassageIndex, ids: list[str], replaced: list[str] | None = None, **kwargs: str) -> None:
    receipt = write_block(index.uri, block(ids, **kwargs))
    Committer(index).commit({receipt: receipt}, replaced or [])


def test_a_block_delivered_twice_appears_once(index: PassageIndex) -> None:
    committer = Committer(index)
    committer.commit({"key": write_block(index.uri, block(["a", "b"]))}, [])
    committer.commit({"key": write_block(index.uri, block(["a", "b"]))}, [])
    assert len(PassageIndex.open(index.uri)) == 2


def test_only_one_writer_at_a_time(index: PassageIndex) -> None:
    with (
        WriterLock(index.uri),
        pytest.raises(ValueError, match=r"another job .* is writing"),
        WriterLock(index.uri),
    ):
        pass
    with WriterLock(index.uri):
        pass


@pytest.mark.parametrize("passage_id", ["it's", 'say "x"', "日本", "a'; DROP TABLE --", "%", "\\"])
def test_ids_with_special_characters_can_be_read_replaced_and_deleted(index: PassageIndex, passage_id: str) -> None:
    add(index, [passage_id, "other"])
    assert passage_id in index.passages([passage_id])
    add(index, [passage_id], replaced=[passage_id], text="new")
    assert index.passages([passage_id])[passage_id]["text"] == "new"
    assert index.delete([passage_id, "not there"]) == 1
    assert ids_of(index) == ["other"]


def test_contents_and_compaction(index: PassageIndex) -> None:
    add(index, ["a", "b"], collection="first")
    add(index, ["c"], collection="second")
    index.delete(["a"])
    contents = index.contents()
    assert (contents.rows, contents.collections, contents.fragments) == (2, {"first": 1, "second": 1}, 2)
    assert contents.deleted_rows == 1
    assert contents.bytes > 0
    compact(index)
    assert (index.contents().fragments, index.contents().deleted_rows) == (1, 0)
    assert sorted(ids_of(index)) == ["b", "c"]
    assert index.manifest == PassageIndex.open(index.uri).manifest


def test_compaction_keeps_large_fragments(index: PassageIndex) -> None:
    with patch.object(compaction, "_FEWEST_ROWS", 8), patch.object(compaction, "_FRAGMENT_BYTES", 1):
        for name, rows in {"a": 5, "b": 1, "c": 12, "d": 1, "e": 3}.items():
            add(index, [f"{name}{n}" for n in range(rows)])
        index.delete([f"c{n}" for n in range(2)])
        (joined, worn) = (compaction.plan(index.dataset, worn=is_worn) for is_worn in (False, True))
        assert [(task.fragments, task.rows, task.is_full) for task in joined] == [((1, 3, 4), 5, False)]
        assert [task.fragments for task in worn] == [(1, 2), (3, 4)]
        assert [task.fragments for task in compaction.plan(index.dataset, but=[2, 3])] == [(1, 4)]
        compact(index)
        assert [fragment.count_rows() for fragment in index.fragments()] == [5, 11, 4]
        assert ids_of(index)[5:8] == ["b0", "c2", "c3"], "in the order of the table"
        assert compaction.plan(index.dataset) == []


def test_stored_representations_equal_the_written_ones(index: PassageIndex) -> None:
    table = block(["a", "b", "c"])
    Committer(index).commit({"key": write_block(index.uri, table)}, [])
    stored = Representations.from_arrow(index.dataset.to_table())
    written = Representations.from_arrow(table)
    for name in Representations.__slots__:
        np.testing.assert_array_equal(getattr(stored, name), getattr(written, name))


def test_cached_texts_equal_those_read_from_the_table(index: PassageIndex) -> None:
    add(index, ["a", "b"], text="one")
    add(index, ["c", "d"], text="two")
    index.delete(["b"])
    before = [index.shown(np.array(rows, np.int64)) for rows in ([0, 2], [1], [])]
    assert [[row["text"] for row in rows] for rows in before] == [["one", "two"], ["two"], []]
    with patch.object(PassageIndex, "take", side_effect=AssertionError("read again")):
        assert [index.shown(np.array(rows, np.int64)) for rows in ([0, 2], [1], [])] == before
    add(index, ["e"], text="three")
    assert [row["text"] for row in index.shown(np.arange(4))] == ["one", "two", "two", "three"], "of the version"


def test_passages_outside_a_damaged_file_can_be_read(index: PassageIndex) -> None:
    add(index, ["a"])
    add(index, ["b"], text="two")
    index = PassageIndex.open(index.uri)
    first, _ = index.fragments()
    (Path(index.uri) / "passages.lance" / "data" / first.data_files()[0].path).write_bytes(b"x" * 5000)
    for _ in range(2):
        assert [row["text"] for row in index.shown(np.array([1]))] == ["two"]


def test_the_error_of_a_missing_index_names_the_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no index at .*encode_beir"):
        PassageIndex.open(str(tmp_path))


@pytest.mark.parametrize(
    "act",
    [PassageIndex.exists, PassageIndex.open, lambda uri: PassageIndex.create(uri, manifest())],
    ids=["exists", "open", "create"],
)
def test_an_unreachable_path_is_reported(tmp_path: Path, act: Callable[[str], object]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot reach the index at .*Not a directory"):
        act(str(tmp_path / "file" / "index"))


def test_another_retriever_is_rejected_with_the_differing_fields() -> None:
    mine = manifest()
    config = mine.retriever.model_copy(update={"backbone": BackboneConfig(source="elsewhere")})
    check_same(mine, mine.model_copy(update={"retriever": config}), "here")
    other = config.model_copy(update={"text": TextConfig(max_query_tokens=32), "read_offset": -1})
    with pytest.raises(ValueError, match=r"retriever.read_offset: 0 != -1\n.*max_query_tokens: 512 != 32"):
        check_same(mine, mine.model_copy(update={"retriever": other}), "here")
    pooled = PooledRetriever(backbone=BackboneConfig(source="x", dtype="float32"))
    with pytest.raises(ValueError, match=r"retriever.method: masked != pooled"):
        check_same(mine, mine.model_copy(update={"retriever": pooled}), "here")


def test_the_previous_version_survives_a_clock_jump(tmp_path: Path) -> None:
    """A day ahead, all versions look old, and one of them was opened just now."""
    index = PassageIndex.create(str(tmp_path / "index"), manifest())
    for name in "abc":
        receipt = write_block(index.uri, block([name]))
        Committer(index).commit({name: receipt}, [])
    before = PassageIndex.open(index.uri, index.version - 1)
    index.forget_versions(timedelta(microseconds=1))
    assert len(before) == 2
    assert [each.version for each in index.versions()] == [index.version - 1, index.version]
    index.forget_versions(timedelta(0))
    assert [each.version for each in index.versions()] == [index.version]


def test_history_lists_the_change_of_every_version(index: PassageIndex) -> None:
    add(index, ["a", "b", "c", "e"])
    add(index, ["b", "c", "d"], replaced=["b", "c"], text="new")
    index.delete(["a", "nothing"])
    compact(index)
    changes = [(v.change, v.rows, v.added, v.removed) for v in history(index) if v.change != "other"]
    assert changes == [
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


def test_history_leaves_counts_of_removed_versions_open(index: PassageIndex) -> None:
    add(index, ["a", "b"])
    index.delete(["a"])
    index.dataset.cleanup_old_versions(older_than=timedelta(0))
    (only,) = history(index)
    assert (only.change, only.rows, only.removed) == ("deleted", 1, None)


def test_column_sizes_add_up_to_the_data_files(index: PassageIndex) -> None:
    add(index, [f"passage-{n}" for n in range(3000)], text="some text")
    sizes, vector_bytes = column_bytes(index), stored_vectors(index).nbytes
    assert list(sizes) == index.dataset.schema.names
    assert vector_bytes <= sizes["reps"] < 1.2 * vector_bytes
    assert 0.9 * index.contents().bytes < sum(sizes.values()) <= index.contents().bytes

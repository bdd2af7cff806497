"""Random changes of an index, with crashes, against a model."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.accelerate import accelerate, missing_files
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from diffretriever.search.sparse import open_sparse
from tests.index.compressed_cases import manifest
from tests.index.index_cases import compact
from tests.index.life_model import (
    ENCODED_QUERIES,
    HIDDEN,
    IDS,
    QUERIES,
    Model,
    Stored,
    assert_holds,
    blocks,
    brute_force,
    brute_force_sparse,
    table_of,
)

CPU = torch.device("cpu")


class CrashError(Exception):
    """Where a process would have been killed."""


class IndexLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.uri = str(self.folder / "index")
        self.now: Model = {}
        self.versions = {PassageIndex.create(self.uri, manifest(HIDDEN)).version: self.now}
        self.readers: list[tuple[PassageIndex, Model]] = []

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def changed(self, now: Model) -> None:
        """Take note of a new version; a reader that was open before it stays open."""
        self.read(max(self.versions))
        self.now = now
        self.versions[PassageIndex.open(self.uri).version] = now

    def read(self, version: int) -> None:
        self.readers = [*self.readers[-1:], (PassageIndex.open(self.uri, version), self.versions[version])]

    def commit(self, written: list[Model]) -> None:
        """As an encode job does: all blocks and what they replace, in one step."""
        index = PassageIndex.open(self.uri)
        replaced = [i for block in written for i in block if i in self.now]
        receipts = {str(n): write_block(self.uri, table_of(block)) for n, block in enumerate(written)}
        Committer(index).commit(receipts, replaced)

    @rule(block=blocks)
    def append(self, block: Model) -> None:
        fresh = {i: passage for i, passage in block.items() if i not in self.now}
        if fresh:
            self.commit([fresh])
            self.changed(self.now | fresh)

    @rule(block=blocks)
    def append_and_replace(self, block: Model) -> None:
        halves: list[Model] = [dict(list(block.items())[part::2]) for part in (0, 1)]
        self.commit([half for half in halves if half])
        self.changed(self.now | block)

    @rule(ids=st.lists(st.sampled_from(IDS), unique=True, max_size=4))
    def delete(self, ids: list[str]) -> None:
        assert PassageIndex.open(self.uri).delete(ids) == sum(i in self.now for i in ids)
        self.changed({i: passage for i, passage in self.now.items() if i not in ids})

    @rule(forget=st.booleans())
    def compact(self, forget: bool) -> None:
        index = PassageIndex.open(self.uri)
        self.read(index.version)
        compact(index, timedelta(0) if forget else timedelta(hours=1))
        self.versions[index.version] = self.now
        if forget:
            self.versions = {index.version: self.now}
            self.readers = [pair for pair in self.readers if pair[0].version == index.version]

    @rule()
    def make_codes(self) -> None:
        accelerate(AccelerateJob(index=self.uri))
        assert missing_files(PassageIndex.open(self.uri)) == []

    @rule(data=st.data())
    def open_an_old_version(self, data: st.DataObject) -> None:
        self.read(data.draw(st.sampled_from(sorted(self.versions))))

    @rule(data=st.data())
    def restore_an_old_version(self, data: st.DataObject) -> None:
        self.restore(data.draw(st.sampled_from(sorted(self.versions))))

    def restore(self, version: int) -> None:
        PassageIndex.open(self.uri, version).dataset.restore()
        self.changed(self.versions[version])

    @rule(block=blocks)
    def crash_before_the_commit(self, block: Model) -> None:
        write_block(self.uri, table_of(block))

    @rule(block=blocks, done=st.booleans())
    def crash_in_the_commit(self, block: Model, done: bool) -> None:
        """The process dies in Lance's commit, just before or just after the new version is there."""
        commit = lance.LanceDataset.commit

        def dying(*arguments: Any, **named: Any) -> None:
            if done:
                commit(*arguments, **named)
            raise CrashError

        with suppress(CrashError), patch.object(lance.LanceDataset, "commit", dying):
            self.commit([block])
        if done:
            self.changed(self.now | block)

    @invariant()
    def the_index_is_the_model(self) -> None:
        index = PassageIndex.open(self.uri)
        assert_holds(index, self.now)
        report = inspect(index, check=True)
        assert report.verification is not None
        assert report.verification.problems == []
        assert report.versions[-1].rows == len(self.now)

    @invariant()
    def readers_keep_their_version(self) -> None:
        for reader, model in self.readers:
            assert_holds(reader, model)

    @invariant()
    def search_finds_what_brute_force_finds(self) -> None:
        options, index = SearchOptions(index=self.uri), PassageIndex.open(self.uri)
        everything = [brute_force(self.now, query, 100) for query in QUERIES]
        assert StreamingScan(index, options, CPU).search(ENCODED_QUERIES, 100) == everything
        for reader, model, k in [(index, self.now, 2), *((*pair, 100) for pair in self.readers)]:
            dense, sparse = open_dense(reader, options, CPU), open_sparse(reader, options)
            assert dense.search(ENCODED_QUERIES, k) == [brute_force(model, query, k) for query in QUERIES]
            assert sparse.search(ENCODED_QUERIES, k) == [brute_force_sparse(model, query, k) for query in QUERIES]


TestIndexLife = IndexLife.TestCase
TestIndexLife.settings = settings(
    max_examples=20, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_reader_opened_before_a_deletion_finds_the_deleted_passage() -> None:
    life = IndexLife()
    life.append({"d0": Stored("one", (0,)), "d1": Stored("two", (9,))})
    life.delete(["d0"])
    life.make_codes()
    assert [sorted(model) for _, model in life.readers] == [[], ["d0", "d1"]]
    life.search_finds_what_brute_force_finds()
    life.teardown()


def test_search_finds_passages_that_a_restore_brings_back() -> None:
    """Though as many passages have been deleted from that since."""
    life = IndexLife()
    life.append({"d0": Stored("one", (0,)), "d1": Stored("two", (9,)), "d2": Stored("three", (19,))})
    before = max(life.versions)
    life.delete(["d0"])
    life.make_codes()
    life.restore(before)
    life.delete(["d1"])
    life.search_finds_what_brute_force_finds()
    verification = inspect(PassageIndex.open(life.uri), check=True).verification
    assert verification is not None
    assert verification.problems == [], "sound, and passed over"
    life.make_codes()
    life.the_index_is_the_model()
    life.search_finds_what_brute_force_finds()
    life.teardown()

"""Versions are opened beside those that are searched: nobody waits for a version that he does not want."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import PartState
from diffretriever.search.bm25 import Bm25Search
from diffretriever.serving import snapshots as module
from diffretriever.serving.metrics import NoMetrics
from diffretriever.serving.snapshots import KEPT_VERSIONS, ShardNumber, Snapshot, Snapshots, Version, View

CPU = torch.device("cpu")


class Parts(NoMetrics):
    """Metrics that keep what they are told of parts."""

    def __init__(self) -> None:
        self.told: list[PartState] = []

    def part(self, version: int, state: PartState) -> None:
        self.told.append(state)


def test_a_version_that_opens_slowly_holds_up_nobody_else(
    own_index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(SearchOptions(index=own_index.uri), CPU)
    first = snapshots.get(Version.of(own_index))
    own_index.delete(["d1"])
    begun, may_go_on, opened = threading.Event(), threading.Event(), list[int]()

    def slow(whole: PassageIndex, *rest: object) -> Snapshot:
        begun.set()
        opened.append(whole.version)
        may_go_on.wait()
        return Snapshot(whole, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Snapshot", slow)
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(snapshots.get, Version.of(own_index)) for _ in range(3)]
        begun.wait()
        assert snapshots.get(Version.of(first.whole)) is first
        assert not any(each.done() for each in waiting)
        may_go_on.set()
        assert len({id(each.result()) for each in waiting}) == 1
    assert opened == [own_index.version], "it is opened once"


def test_a_version_that_cannot_be_opened_is_tried_again(own_index: PassageIndex) -> None:
    snapshots = Snapshots(SearchOptions(index=own_index.uri), CPU)
    later = Version.of(own_index)._replace(number=own_index.version + 1)
    with pytest.raises(ValueError, match=f"keeps no version {later.number}"):
        snapshots.get(later)
    own_index.delete(["d1"])
    assert snapshots.get(later).whole.version == later.number


def test_bm25_is_opened_once_for_all_who_wait_and_tried_again(
    own_index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[PassageIndex] = []

    def failing(index: PassageIndex) -> Bm25Search:
        opened.append(index)
        if len(opened) == 1:
            raise ValueError("a disk is full")
        return Bm25Search(index)

    async def ask_often(view: View) -> list[object]:
        failed = await asyncio.gather(view.bm25(None), view.bm25(None), return_exceptions=True)
        assert [str(each) for each in failed] == ["a disk is full"] * 2
        impatient = asyncio.ensure_future(view.bm25(None))
        await asyncio.sleep(0)
        impatient.cancel()
        return list(await asyncio.gather(*(view.bm25(None) for _ in range(3))))

    monkeypatch.setattr(module, "Bm25Search", failing)
    found = asyncio.run(ask_often(View(own_index)))
    assert len({id(each) for each in found}) == 1
    assert len(opened) == 2


def test_only_the_newest_are_kept_and_each_is_told_of(own_index: PassageIndex) -> None:
    parts = Parts()
    snapshots = Snapshots(SearchOptions(index=own_index.uri), CPU, ShardNumber(1, 2), parts)
    first = snapshots.get(Version.of(own_index))
    for number in range(KEPT_VERSIONS):
        own_index.delete([f"d{number}"])
        snapshots.get(Version.of(own_index))
    assert snapshots.get(Version.of(first.whole)) is not first
    other = Snapshots(SearchOptions(index=own_index.uri), CPU, ShardNumber(0, 2)).get(Version.of(own_index))
    assert other.state.passages + parts.told[-2].passages == 60 - KEPT_VERSIONS
    assert other.state.fragments + parts.told[-2].fragments == 3

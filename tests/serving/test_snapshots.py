"""Several versions of an index are open at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.serving import snapshots as module
from diffretriever.serving.snapshots import KEPT_VERSIONS, Snapshot, Snapshots, Version

CPU = torch.device("cpu")


def test_a_version_that_opens_slowly_does_not_block_others(
    own_index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(SearchOptions(index=own_index.uri), CPU)
    first = snapshots.get(Version.of(own_index))
    own_index.delete(["d1"])
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(whole: PassageIndex, *rest: object) -> Snapshot:
        begun.set()
        may_go_on.wait()
        return Snapshot(whole, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Snapshot", slow)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(snapshots.get, Version.of(own_index))
        begun.wait()
        assert snapshots.get(Version.of(first.whole)) is first
        assert not waiting.done()
        may_go_on.set()
        assert waiting.result().whole.version == own_index.version


def test_only_the_newest_versions_stay_open(own_index: PassageIndex) -> None:
    measured: list[tuple[str, float]] = []
    snapshots = Snapshots(
        SearchOptions(index=own_index.uri), CPU, (1, 2), lambda name, value, tag="": measured.append((name, value))
    )
    first = snapshots.get(Version.of(own_index))
    for number in range(KEPT_VERSIONS):
        own_index.delete([f"d{number}"])
        latest = snapshots.get(Version.of(own_index))
    assert ("held_passages", latest.state.passages) in measured
    assert measured[-3] == ("index_version", own_index.version)
    assert snapshots.get(Version.of(first.whole)) is not first
    other = Snapshots(SearchOptions(index=own_index.uri), CPU, (0, 2)).get(Version.of(own_index))
    assert other.state.passages + latest.state.passages == 60 - KEPT_VERSIONS
    assert other.state.fragments + latest.state.fragments == 3

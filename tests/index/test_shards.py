"""The assignment of fragments to shards is deterministic, balanced and stable."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from diffretriever.index.parts import shard_fragments
from diffretriever.index.table import PassageIndex


@dataclass(frozen=True)
class Fragment:
    """What counts of a Lance fragment."""

    fragment_id: int
    physical_rows: int

    def data_files(self) -> list[Any]:
        return [SimpleNamespace(path=f"{self.fragment_id * 7919:024b}.lance")]


def made(rows: list[int], first: int = 0) -> list[Fragment]:
    return [Fragment(first + number, each) for number, each in enumerate(rows)]


def owners(fragments: list[Fragment], shards: int) -> dict[int, int]:
    """Return the shard of each fragment."""
    index = cast("PassageIndex", SimpleNamespace(fragments=lambda: list(fragments)))
    owned = shard_fragments(index, shards)
    assert len(owned) == shards
    assert sorted(number for own in owned for number in own) == sorted(f.fragment_id for f in fragments)
    return {number: shard for shard, own in enumerate(owned) for number in own}


def random_rows(n: int) -> list[int]:
    return np.random.default_rng(n).integers(1, 1000, n).tolist()


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [0, 1, 5, 40, 500])
def test_every_fragment_has_one_shard_and_sizes_are_balanced(n: int, shards: int) -> None:
    fragments = made(random_rows(n))
    owned = owners(fragments, shards)
    rows = [sum(f.physical_rows for f in fragments if owned[f.fragment_id] == shard) for shard in range(shards)]
    largest = max((f.physical_rows for f in fragments), default=0)
    assert max(rows) <= 1.1 * sum(rows) / shards + largest


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_appending_moves_no_fragment(shards: int) -> None:
    fragments = made(random_rows(60))
    before = owners(fragments, shards)
    after = owners(fragments + made(random_rows(40), first=60), shards)
    assert {number: after[number] for number in before} == before


def test_compaction_moves_few_fragments() -> None:
    """A hundred fragments compacted into one."""
    fragments = made(random_rows(500))
    before = owners(fragments, 4)
    joined = [*fragments[:50], *fragments[150:], Fragment(500, sum(f.physical_rows for f in fragments[50:150]))]
    after = owners(joined, 4)
    stayed = sum(after[f.fragment_id] == before[f.fragment_id] for f in joined[:-1])
    assert stayed / (len(joined) - 1) > 0.6, "a quarter would by chance"

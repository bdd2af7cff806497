"""A part of an index reads as an index; all parts together are the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.parts import IndexPart, split_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.search.dense.codes import build_codes
from tests.search.conftest import fill


@pytest.fixture
def changed(encoder: Encoder, tmp_path: Path) -> PassageIndex:
    """Six fragments, some rows deleted, and codes for the first three fragments alone."""
    index = fill(encoder, str(tmp_path / "index"))
    build_codes(index)
    fill(encoder, index.uri, prefix="n")
    index.refresh()
    index.delete(["d3", "d4", "n59"])
    return index


def ids(index: PassageIndex) -> list[str]:
    return [i for batch in index.batches(["id"], 7) for i in batch.column("id").to_pylist()]


@pytest.mark.parametrize("n_parts", [1, 2, 4, 50])
def test_parts_are_the_whole(changed: PassageIndex, n_parts: int) -> None:
    groups = split_fragments(changed, n_parts)
    assert 1 <= len(groups) <= min(n_parts, 6)
    parts = [IndexPart.of_fragments(changed, numbers) for numbers in groups.values()]
    assert [i for part in parts for i in ids(part)] == ids(changed)
    assert sum(map(len, parts)) == len(changed)
    assert split_fragments(changed, n_parts) == groups, "names are the same each time"


def test_an_empty_index_has_no_parts(encoder: Encoder, tmp_path: Path) -> None:
    from diffretriever.index.manifest import manifest_of

    assert split_fragments(PassageIndex.create(str(tmp_path / "empty"), manifest_of(encoder)), 4) == {}

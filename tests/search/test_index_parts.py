"""A part of an index reads as an index; all parts together are the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffretriever.encoders.base import Encoder
from diffretriever.index.parts import IndexPart, split_fragments
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.scoring.hits import Hits
from diffretriever.search.batch import merge, to_hits, to_table
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.codes import build_codes
from diffretriever.search.sparse import open_sparse
from tests.search.conftest import QUERIES, fill


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


@pytest.mark.parametrize("n_parts", [2, 4])
def test_searches_of_parts_merged_are_the_search_of_the_whole(
    changed: PassageIndex, encoder: Encoder, n_parts: int
) -> None:
    queries, options = encoder.encode_queries(QUERIES), SearchOptions(index=changed.uri)

    def dense(index: PassageIndex) -> Hits:
        return open_dense(index, options, torch.device("cpu")).search(queries, 20)

    def sparse(index: PassageIndex) -> Hits:
        return open_sparse(index, options).search(queries, 20)

    parts = [IndexPart.of_fragments(changed, numbers) for numbers in split_fragments(changed, n_parts).values()]
    for search in (dense, sparse):
        merged = merge([to_table(search(part)) for part in parts], 20)
        assert to_hits({"dense": merged}, len(QUERIES)) == {"dense": search(changed)}

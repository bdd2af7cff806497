"""`benchmarks.search` with few passages."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.search import loops
from benchmarks.search.figures import Hybrid

VECTORS: dict[str, Any] = {"passages": 400, "slots": 2, "dims": 32, "spread": "clustered", "query_slots": 2}
QUERIES = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("made-up") / "index")
    assert loops.prepare(place, VECTORS, QUERIES, "vectors").mb > 0
    return place


def test_the_hybrid_benchmark_times_both_lists(folder: str) -> None:
    loops.build(folder)
    words = loops.build_bm25(folder)
    assert words.built.mb > 0
    found = Hybrid.model_validate({**loops.hybrid(folder, VECTORS, QUERIES), "words": words})
    assert len(found.ms) == len(found.first_ms) == len(found.dense_ms) == len(found.bm25_ms) == QUERIES
    assert all(
        whole >= dense + bm25 for whole, dense, bm25 in zip(found.ms, found.dense_ms, found.bm25_ms, strict=True)
    )
    assert found.row(1e9)[-1].endswith("met")


def test_exact_searches_of_the_benchmark_have_full_recall(folder: str) -> None:
    rows = loops.exact(folder, VECTORS, QUERIES, 3)
    exact = [row for row in rows if "bf16" not in row["name"]]
    assert len(exact) == len(rows) - 1 == 6
    assert all(row["recall_10"] == row["recall_100"] == 1 for row in exact)

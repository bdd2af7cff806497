"""A model of an index: passages in a dictionary, searched by brute force."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import join_columns, text_table
from diffretriever.vectors.hits import Hit
from diffretriever.vectors.representations import Representations
from tests.index.index_cases import represented

# Codecs want a multiple of 8.
HIDDEN, MOST_VECTORS = 8, 3
HALVES = np.pad(np.array(np.meshgrid(*[[-0.5, 0.5]] * 4)).reshape(4, -1).T, ((0, 0), (0, HIDDEN - 4)))
DIRECTIONS = np.concatenate([np.eye(HIDDEN), HALVES]).astype(np.float16)
IDS = [f"d{n}" for n in range(8)]


class Stored(NamedTuple):
    """What the model knows of a passage."""

    text: str
    directions: tuple[int, ...]


Model = dict[str, Stored]
passages = st.builds(
    Stored,
    text=st.sampled_from(["one", "two", "three"]),
    directions=st.lists(st.integers(0, len(DIRECTIONS) - 1), min_size=1, max_size=MOST_VECTORS).map(tuple),
)
blocks = st.dictionaries(st.sampled_from(IDS), passages, min_size=1, max_size=5)


def representations(directions: list[Any]) -> Representations:
    return represented([DIRECTIONS[list(slots)] for slots in directions], [Counter(slots) for slots in directions])


# Two vectors a query: the mean of two exact products is exact as well.
QUERIES = [[0, 9], [4, 19], [13, 13]]
ENCODED_QUERIES = representations(QUERIES)


def table_of(block: Model) -> pa.Table:
    rows = [Passage(i, "", passage.text) for i, passage in block.items()]
    vectors = representations([passage.directions for passage in block.values()])
    return join_columns(text_table(rows, "c"), vectors.to_arrow())


def assert_holds(index: PassageIndex, model: Model) -> None:
    table = index.dataset.to_table(columns=["id", "text"])
    assert sorted(table.column("id").to_pylist()) == sorted(model), "each passage once, none lost"
    stored = dict(zip(table.column("id").to_pylist(), table.column("text").to_pylist(), strict=True))
    assert stored == {i: passage.text for i, passage in model.items()}
    assert {i: row["text"] for i, row in index.passages(IDS).items()} == stored


def brute_force(model: Model, query: list[int], k: int) -> list[Hit]:
    """Score every passage with Python's own numbers."""
    vectors = DIRECTIONS.tolist()
    scores: dict[str, float] = {}
    for passage_id, passage in model.items():
        products = [[sum(map(float.__mul__, vectors[q], vectors[p])) for p in passage.directions] for q in query]
        scores[passage_id] = sum(map(max, products)) / len(query)
    return _best(scores, k)


def brute_force_sparse(model: Model, query: list[int], k: int) -> list[Hit]:
    """Count pairs of equal directions."""
    counts = {i: sum(p == q for p in passage.directions for q in query) for i, passage in model.items()}
    return _best({i: float(count) for i, count in counts.items() if count}, k)


def _best(scores: dict[str, float], k: int) -> list[Hit]:
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

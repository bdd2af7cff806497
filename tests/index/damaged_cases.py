"""Indexes of 101 passages, one of which has NaN or infinity."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from unittest.mock import patch

import numpy as np

from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.vectors.representations import Representations
from tests.index.compressed_cases import manifest, representations

NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
BAD = "p50"
QUERIES = representations(6, seed=77)


def damaged(encoded: Representations, text: int, number: float, where: Literal["vector", "weight"]) -> Representations:
    """The same with one number of a text's first vector or impact changed."""
    changed = encoded.take(np.arange(len(encoded)))
    if where == "vector":
        changed.vectors_MH[changed.offsets[text], 3] = number
    else:
        changed.impact_weights[changed.impact_offsets[text]] = number
    return changed


def damaged_index(folder: Path, number: float, where: Literal["vector", "weight"] = "vector") -> PassageIndex:
    """Passages p0 to p100 in one fragment, p50 damaged, which writers refuse."""
    index = PassageIndex.create(str(folder / "index"), manifest())
    passages = [Passage(f"p{i}", "", f"text {i}") for i in range(101)]
    encoded = damaged(representations(101, seed=1), 50, number, where)
    with patch("diffretriever.index.writer.refuse_to_write"):
        receipt = write_block(index.uri, join_columns(text_table(passages, "c"), encoded.to_arrow()))
    Committer(index).commit({"all": receipt}, [])
    return index

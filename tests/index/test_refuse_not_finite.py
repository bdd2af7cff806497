"""Nothing writes NaN or infinity into an index: the passages are named, and what is there stays."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from diffretriever.collections import Passage
from diffretriever.index.writer import beside, text_table, write_block
from tests.index.compressed_cases import compressed, fill, representations
from tests.index.damaged_cases import NUMBERS, damaged

Where = Literal["vector", "weight"]
PASSAGES = [Passage(f"new{i}", "", f"text {i}") for i in range(9)]


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("where", ["vector", "weight"])
@pytest.mark.parametrize("codec", [None, "product2"])
def test_a_block_is_refused(
    codec: str | None, where: Literal["vector", "weight"], number: float, tmp_path: Path
) -> None:
    index = fill(str(tmp_path / "index"), 60)
    index = index if codec is None else compressed(index, codec)
    files = set((tmp_path / "index").rglob("*"))
    encoded = damaged(damaged(representations(9, seed=2), 4, number, where), 6, number, where)
    with pytest.raises(ValueError, match="c: passages 'new4', 'new6' would be stored with NaN or infinity"):
        write_block(index.uri, beside(text_table(PASSAGES, "c"), encoded.to_arrow()))
    assert set((tmp_path / "index").rglob("*")) == files

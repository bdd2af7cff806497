"""Writers reject NaN and infinity and name the passages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from unittest.mock import MagicMock

import numpy as np
import pytest

from diffretriever.collections import Passage
from diffretriever.encoders.base import Encoded
from diffretriever.encoders.preparer import NO_IDS, PreparedText, to_arrow
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.pipelines.blocks import EncodeBlocks, pack
from tests.index.compressed_cases import compressed, fill, representations
from tests.index.damaged_cases import NUMBERS, damaged
from tests.index.index_cases import ids_of

Where = Literal["vector", "weight"]
PASSAGES = [Passage(f"new{i}", "", f"text {i}") for i in range(9)]


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("where", ["vector", "weight"])
@pytest.mark.parametrize("codec", [None, "product2"])
def test_a_block_with_nan_or_infinity_is_rejected(
    codec: str | None, where: Literal["vector", "weight"], number: float, tmp_path: Path
) -> None:
    index = fill(str(tmp_path / "index"), 60)
    index = index if codec is None else compressed(index, codec)
    files = set((tmp_path / "index").rglob("*"))
    encoded = damaged(damaged(representations(9, seed=2), 4, number, where), 6, number, where)
    with pytest.raises(ValueError, match="c: passages 'new4', 'new6' would be stored with NaN or infinity"):
        write_block(index.uri, join_columns(text_table(PASSAGES, "c"), encoded.to_arrow()))
    assert set((tmp_path / "index").rglob("*")) == files


@pytest.mark.parametrize("wrong", [[0, 8], list(range(9))])
def test_encoding_skips_and_reports_passages_that_are_not_finite(wrong: list[int], tmp_path: Path) -> None:
    indexes = [fill(str(tmp_path / name), 5) for name in ("large", "small")]
    bad = sound = representations(9, seed=2)
    for text in wrong:
        bad = damaged(bad, text, np.nan, "vector")
    budgets = {index.uri: 3 for index in indexes}
    encoder = MagicMock()
    encoder.submit.return_value.result.return_value = Encoded([sound, bad], 1, 1, 0.0)
    stage = EncodeBlocks(encoder, budgets)
    stage.setup()
    prepared = to_arrow([PreparedText(NO_IDS, 3, NO_IDS, NO_IDS, 0)] * len(PASSAGES))
    (receipt,) = next(stage(pack("key", join_columns(text_table(PASSAGES, "c"), prepared)))).to_pylist()
    finite_ids = [p.id for row, p in enumerate(PASSAGES) if row not in wrong]
    assert receipt["not_finite"] == [PASSAGES[row].id for row in wrong]
    assert receipt["ids"] == finite_ids
    for index, written in zip(indexes, receipt["receipts"], strict=True):
        Committer(index).commit({"key": written}, [])
        index.refresh()
        assert sorted(ids_of(index)) == sorted([*finite_ids, *(f"p{i}" for i in range(5))])

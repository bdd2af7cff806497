"""A clone of an index reads its files and changes independently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.index.table import PassageIndex
from tests.index.compressed_cases import compressed, fill, stored_vectors


@pytest.mark.parametrize("place", ["disk", "store"])
def test_changes_of_a_clone_leave_the_original(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = str(tmp_path) if place == "disk" else f"{request.getfixturevalue('bucket')}/cloned"
    index = fill(f"{folder}/index", 20, 10)
    before = stored_vectors(index)
    clone = index.clone(f"{folder}/clone")
    assert np.array_equal(stored_vectors(clone), before)
    assert clone.manifest == index.manifest
    compressed(clone, "product2")
    assert PassageIndex.open(f"{folder}/clone").manifest.codec
    original = PassageIndex.open(f"{folder}/index")
    assert (original.version, original.manifest.codec) == (index.version, None)
    assert np.array_equal(stored_vectors(original), before)
    with pytest.raises(ValueError, match="clone"):
        index.clone(f"{folder}/clone")

"""Encoders over adapters in the authors' format compute what they should, and are told apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffretriever.encoders import load_encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.index.manifest import manifest_of
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.testing.adapters import write_random_adapter
from tests.backbones.adapter_cases import merge_by_hand
from tests.encoders.encoder_cases import TEXTS, FolderOf, assert_close, assert_identical, impacts
from tests.encoders.released_cases import TEMPLATES, release


@pytest.fixture(params=list(TEMPLATES))
def config(request: pytest.FixtureRequest, folder_of: FolderOf, tmp_path: Path) -> MaskedRetriever:
    """The retriever that fits a released adapter of each family in turn."""
    return release(request.param, folder_of(request.param), tmp_path / "adapter")


def with_place(config: MaskedRetriever, **changes: Any) -> MaskedRetriever:
    return config.model_copy(update={"backbone": config.backbone.model_copy(update=changes)})


def masked(config: MaskedRetriever) -> MaskedEncoder:
    found = load_encoder(config, "cpu")
    assert isinstance(found, MaskedEncoder)
    return found


def test_it_encodes_as_the_sum_of_weights_does(config: MaskedRetriever, tmp_path: Path) -> None:
    assert config.backbone.adapter is not None
    summed = merge_by_hand(Path(config.backbone.source), Path(config.backbone.adapter), tmp_path / "sum")
    expected = masked(with_place(config, source=str(summed), adapter=None)).encode_passages([""] * len(TEXTS), TEXTS)
    merged, beside, plain = (
        masked(with_place(config, **changes)).encode_passages([""] * len(TEXTS), TEXTS)
        for changes in ({}, {"merge_adapter": False}, {"adapter": None})
    )
    assert_identical(merged, expected)
    assert_close(beside, expected)
    assert np.abs(plain.vectors_MH - expected.vectors_MH).max() > 0.05


def test_the_head_touches_sparse_scores_only(config: MaskedRetriever) -> None:
    whole, dropped = masked(config), masked(with_place(config, adapter_head="drop"))
    ours, theirs = whole.encode_queries(TEXTS), dropped.encode_queries(TEXTS)
    assert ours.vectors_MH.tobytes() == theirs.vectors_MH.tobytes()
    same = np.array_equal(impacts(ours, 0).weights, impacts(theirs, 0).weights)
    assert same == (whole.backbone.family == "Dream")


def test_the_fingerprint_covers_the_adapter(config: MaskedRetriever, tmp_path: Path) -> None:
    moved = shutil.copytree(str(config.backbone.adapter), tmp_path / "moved")
    other = write_random_adapter(config.backbone.source, tmp_path / "other", seed=1)
    places: list[dict[str, Any]] = [{}, {"adapter": str(moved)}, {"adapter": None}, {"adapter": str(other)}]
    found = [manifest_of(masked(with_place(config, **place))).fingerprint for place in places]
    assert found[0] == found[1]
    assert len(set(found)) == 3

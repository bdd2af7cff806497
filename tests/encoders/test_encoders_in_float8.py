"""Encoders in 8 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffretriever.encoders import load_encoder
from diffretriever.front.index import Index
from diffretriever.front.retriever import Retriever
from diffretriever.index.manifest import check_same, manifest_of
from diffretriever.schemas.retriever import BackboneConfig, MaskedRetriever
from tests.encoders.encoder_cases import WORDS, FolderOf


def in_float8(folder: Path) -> MaskedRetriever:
    return MaskedRetriever(backbone=BackboneConfig(source=str(folder), dtype="float8"))


def test_an_index_knows_that_it_is_in_8_bits(folder_of: FolderOf, tmp_path: Path) -> None:
    retriever = Retriever(in_float8(folder_of("dream")), device="cpu")
    made = Index.create(str(tmp_path / "index"), list(WORDS), retriever=retriever, on_ray=False)
    opened = Index(made.place)
    config = opened.retriever.config
    assert isinstance(config, MaskedRetriever)
    assert config.backbone.dtype == "float8"
    assert len(opened.search(WORDS[3], 3)) == 3
    place = config.backbone.model_copy(update={"dtype": "bfloat16"})
    other = load_encoder(config.model_copy(update={"backbone": place}), "cpu")
    with pytest.raises(ValueError, match=r"backbone\.dtype: float8 != bfloat16"):
        check_same(manifest_of(retriever.encoder), manifest_of(other), made.place)

"""Encoders in 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffretriever.encoders import load_encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.front.index import Index
from diffretriever.front.retriever import Retriever
from diffretriever.index.manifest import check_same, manifest_of
from diffretriever.schemas.retriever import BackboneConfig, MaskedRetriever
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import TEXTS, WORDS, FolderOf, Make


def cosines(found: Representations, expected: Representations) -> np.ndarray:
    products: np.ndarray = (found.vectors_MH.astype(np.float32) * expected.vectors_MH.astype(np.float32)).sum(1)
    return products


def in_float8(folder: Path) -> MaskedRetriever:
    return MaskedRetriever(backbone=BackboneConfig(source=str(folder), dtype="float8"))


def test_8_bits_are_close(folder_of: FolderOf, make_masked: Make[MaskedEncoder]) -> None:
    rounded, exact = load_encoder(in_float8(folder_of("dream")), "cpu"), make_masked("dream")
    together, expected = rounded.encode_queries(TEXTS), exact.encode_queries(TEXTS)
    alone = Representations.concatenate([rounded.encode_queries([text]) for text in TEXTS])
    assert cosines(together, expected).min() > 0.98
    assert cosines(together, alone).min() > 0.99
    assert rounded.facts.dtype == "float8"


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

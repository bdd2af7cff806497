"""The presets of published embedding models, each run on a tiny random model of its kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra `models` is not installed")

from diffretriever.encoders import load_encoder
from diffretriever.encoders.library import LibraryEncoder
from diffretriever.presets import load_retriever, preset_names
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, LibraryRetriever
from tests.encoders.library_cases import TEXTS, late_interaction, plain, published

KIND_OF = {
    "contriever": ("bert", None),
    "tas-b": ("bert", "cls"),
    "colbertv2": ("stanford", None),
    "qwen3-embedding-0.6b": ("qwen3", "lasttoken"),
    "qwen3-embedding-4b": ("qwen3", "lasttoken"),
    "qwen3-embedding-8b": ("qwen3", "lasttoken"),
    "nv-embed-v2": ("mistral", "mean"),
    "gritlm-7b": ("mistral", None),
    "pplx-embed-4b": ("qwen3", "mean"),
    "pplx-embed-0.6b": ("qwen3", "mean"),
    "e5-mistral-7b": ("mistral", "lasttoken"),
    "gte-qwen2-1.5b": ("qwen3", "lasttoken"),
    "gte-qwen2-7b": ("qwen3", "lasttoken"),
}
"""A tiny model for each preset, and how it pools; None: a checkpoint without `modules.json`."""


def presets() -> list[str]:
    return [name for name in preset_names() if isinstance(load_retriever(name), LibraryRetriever)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str | None], Path]:
    root = tmp_path_factory.mktemp("preset-models")
    made: dict[tuple[str, str | None], Path] = {}
    for kind, pooling in set(KIND_OF.values()):
        folder = root / f"{kind}-{pooling}"
        if pooling is not None:
            made[kind, pooling] = published(kind, folder, pooling)
        else:
            made[kind, pooling] = late_interaction(kind, folder) if kind == "stanford" else plain(kind, folder)
    return made


def test_every_preset_has_a_model_here() -> None:
    assert set(presets()) == set(KIND_OF)


@pytest.mark.parametrize("name", presets())
def test_a_preset_encodes_with_another_backbone(name: str, folders: dict[tuple[str, str | None], Path]) -> None:
    config = load_retriever(name, backbone=str(folders[KIND_OF[name]]))
    assert isinstance(config, LibraryRetriever)
    assert RETRIEVER_ADAPTER.validate_json(config.model_dump_json()) == config
    assert not config.remote_code
    place = config.backbone.model_copy(update={"dtype": "float32"})
    encoder = load_encoder(config.model_copy(update={"backbone": place}), "cpu")
    assert isinstance(encoder, LibraryEncoder)
    queries = encoder.encode_queries(TEXTS)
    passages = encoder.encode_passages(["title"] * len(TEXTS), TEXTS)
    for found, side in ((queries, "query"), (passages, "passage")):
        counts = np.diff(found.offsets)
        assert counts.min() >= 1
        assert counts.max() <= (config.max_vectors("query") if side == "query" else config.max_vectors("passage"))
        assert np.isfinite(found.vectors_MH).all()
    lengths = np.linalg.norm(queries.vectors_MH.astype(np.float32), axis=1)
    assert np.allclose(lengths, 1, atol=1e-3) == (config.similarity == "cosine")

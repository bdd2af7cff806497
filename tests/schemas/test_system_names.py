"""Names of systems in runs."""

from __future__ import annotations

from typing import Any

import pytest

from diffretriever.presets import in_tag, list_presets, load_retriever, system_name
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import RetrieverConfig


def manifest(config: RetrieverConfig, **fields: Any) -> IndexManifest:
    return IndexManifest.model_validate({"retriever": config, "created": "today", **fields})


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_keeps_its_name(name: str) -> None:
    config = load_retriever(name)
    for collection in ("", *getattr(config, "on_collections", ())):
        assert system_name(manifest(config.on(collection))).split(".q")[0] == name, collection
    without = config.model_copy(update={"default_mode": None})
    assert system_name(manifest(without)).split(".q")[0] == name


def test_precision_and_revision_do_not_change_the_name() -> None:
    config = load_retriever("diffretriever-dream", budget=Budget(2, 8))
    backbone = config.backbone.model_copy(update={"dtype": "bfloat16", "revision": "a" * 40})  # type: ignore[union-attr]
    config = config.model_copy(update={"backbone": backbone})
    assert system_name(manifest(config)) == "diffretriever-dream.q2p8"
    assert system_name(manifest(config), 3) == "diffretriever-dream.q3p8"
    assert system_name(manifest(config), "learned λ=0.001") == "diffretriever-dream.q-learned-0.001-p8"
    codec = {"name": "product2", "digest": "0" * 32, "width": 4}
    assert system_name(manifest(config, codec=codec)) == "diffretriever-dream.q2p8.product2"


def test_other_retrievers_are_named_by_method_and_weights() -> None:
    moved = load_retriever("diffretriever-llada", backbone="/models/my llada/", adapter="s3://here/lora")
    assert system_name(manifest(moved)) == "masked-my-llada-lora.q4p4"
    assert system_name(manifest(load_retriever("promptreps-llama3", backbone="/m"))) == "generated-m"
    assert system_name(manifest(load_retriever("promptreps-llama3")), 2) == "promptreps-llama3.q2"
    config = load_retriever("bm25").model_copy(update={"k1": 1.2})
    assert system_name(manifest(config)) == "bm25-k1-1.2-b-0.4"


def test_tags_have_no_spaces() -> None:
    assert in_tag(" My BM25/1+λ ") == "My-BM25-1+"
    assert in_tag("λ") == "run"

"""Training that starts from an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffretriever.encoders import load_encoder
from diffretriever.schemas.base import differing_fields
from diffretriever.schemas.retriever import BackboneRetriever
from diffretriever.schemas.training import LORA_RANK
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.training.adapters import adapter_tensors
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of

TEXTS = ["the river and the honey", "copper", "winter of winter again"]
SLOTS = {"slot_layers": 4}


def going_on(retriever: BackboneRetriever, adapter: Path, **place: Any) -> BackboneRetriever:
    changes = {"adapter": str(adapter)} | place
    return retriever.model_copy(update={"backbone": retriever.backbone.model_copy(update=changes)})


@pytest.mark.parametrize(("case", "slots"), [("masked-bert", SLOTS), ("generated-qwen2", {})])
def test_training_starts_from_an_adapter(case: str, slots: dict[str, Any], folder_of: FolderOf, tmp_path: Path) -> None:
    retriever = config_of(case, folder_of)
    first = session_of(retriever, quick_recipe(max_steps=2, **slots))
    run(first, 2)
    first.save_adapter(tmp_path / "first")
    expected = first.encoder.encode_queries(TEXTS)

    more = {"slot_layers": 6} if slots else {}
    second = session_of(going_on(retriever, tmp_path / "first"), quick_recipe(max_steps=2, **slots | more))
    actual = second.encoder.encode_queries(TEXTS)
    np.testing.assert_allclose(np.float32(actual.vectors_MH), np.float32(expected.vectors_MH), atol=1e-3)
    np.testing.assert_array_equal(actual.impact_ids, expected.impact_ids)
    np.testing.assert_allclose(actual.impact_weights, expected.impact_weights, atol=1e-4)
    assert second.manifest.start is not None
    assert second.manifest.start.adapter == str(tmp_path / "first")

    begun = {name: tensor.clone() for name, tensor in adapter_tensors(second.encoder.backbone).items()}
    run(second, 2)
    after = adapter_tensors(second.encoder.backbone)
    assert all(not torch.equal(tensor, begun[name]) for name, tensor in after.items())
    manifest = second.save_adapter(tmp_path / "second")
    assert isinstance(manifest.retriever, BackboneRetriever)
    assert manifest.retriever.backbone.adapter is None
    assert manifest.start == second.manifest.start
    loaded = load_encoder(going_on(retriever, tmp_path / "second", merge_adapter=False), "cpu")
    # An encoder of its own: one that has generated before keeps its prompt's states.
    trained = type(second.encoder)(retriever, second.encoder.backbone, second.encoder.preparer)
    np.testing.assert_array_equal(loaded.encode_queries(TEXTS).vectors_MH, trained.encode_queries(TEXTS).vectors_MH)


def test_another_start_is_another_training(folder_of: FolderOf, tmp_path: Path) -> None:
    retriever = config_of("masked-bert", folder_of)
    for seed in (0, 1):
        write_random_adapter(folder_of("bert"), tmp_path / f"adapter{seed}", rank=LORA_RANK, seed=seed)
    write_random_adapter(folder_of("bert"), tmp_path / "copy", rank=LORA_RANK, seed=0)
    recipe = quick_recipe(max_steps=1)
    new, zero, one, copy = (
        session_of(each, recipe).manifest
        for each in (retriever, *(going_on(retriever, tmp_path / name) for name in ("adapter0", "adapter1", "copy")))
    )
    assert zero.identity == copy.identity, "its path does not count"
    assert [text.partition(":")[0] for text in differing_fields(zero.identity, one.identity)] == ["start"]
    assert [text.partition(":")[0] for text in differing_fields(new.identity, zero.identity)] == ["start"]


def test_resuming_is_refused_if_the_starting_adapter_changed(folder_of: FolderOf, tmp_path: Path) -> None:
    from diffretriever.training.adapters import describe_start, read_start

    retriever = config_of("masked-bert", folder_of)
    write_random_adapter(folder_of("bert"), tmp_path / "adapter", rank=LORA_RANK)
    place = going_on(retriever, tmp_path / "adapter").backbone
    start = describe_start(place, quick_recipe())
    write_random_adapter(folder_of("bert"), tmp_path / "adapter", rank=LORA_RANK, seed=5)
    backbone = session_of(retriever, quick_recipe(max_steps=1)).encoder.backbone
    with pytest.raises(ValueError, match="the adapter is not what it was when this training began"):
        read_start(backbone, place, start)


def test_adapters_that_training_cannot_continue_are_refused(folder_of: FolderOf, tmp_path: Path) -> None:
    llada = config_of("masked-llada", folder_of)
    write_random_adapter(folder_of("llada"), tmp_path / "narrow", rank=8)
    with pytest.raises(ValueError, match="rank 8, but training uses 16"):
        session_of(going_on(llada, tmp_path / "narrow"), quick_recipe())
    write_random_adapter(folder_of("llada"), tmp_path / "llada", rank=LORA_RANK)
    with pytest.raises(ValueError, match=r"adapts lm_head, .*set backbone.adapter_head: drop"):
        session_of(going_on(llada, tmp_path / "llada"), quick_recipe())
    assert session_of(going_on(llada, tmp_path / "llada", adapter_head="drop"), quick_recipe())

    bert = config_of("masked-bert", folder_of)
    session_of(bert, quick_recipe(max_steps=1, **SLOTS)).save_adapter(tmp_path / "slots")
    for slots in (0, 3):
        with pytest.raises(ValueError, match=f"layers for 4 slots, but the recipe has {slots}"):
            session_of(going_on(bert, tmp_path / "slots"), quick_recipe(slot_layers=slots))

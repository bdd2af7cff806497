"""Slot embeddings, token head and nested slots in training."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from diffretriever.backbones.slot_layers import SLOTS_FILE, SlotLayers, attach_slot_layers
from diffretriever.encoders import load_encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import PromptConfig
from diffretriever.training.adapters import trainable_parameters
from tests.training.test_trainable import TEXTS, assert_same, changed, load
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of

SLOTS = {"slot_layers": 4}
NESTED = {"nested_slots": True, "prompt": {"variant": "bare"}, "tail_length": 0}
CASES = [("masked-dream", "states"), ("masked-bert", "pooling")]


@pytest.mark.parametrize(("case", "readout"), CASES)
def test_training_sees_what_the_encoder_gives(case: str, readout: str, folder_of: FolderOf) -> None:
    encoder = changed(load(case, folder_of, budget="q2p3", readout=readout, **NESTED), **SLOTS)
    layers = encoder.backbone.slot_layers
    assert layers is not None
    with torch.no_grad():
        # What starts at zero; without it nothing would reach what comes before.
        for started in (layers.token_head, layers.residual):
            if started is not None:
                started.normal_(std=0.2, generator=torch.Generator().manual_seed(1))
    for texts in (encoder.preparer.prepare_queries(TEXTS, [1, 2, 4, 3, 1]), encoder.preparer.prepare_queries(TEXTS)):
        actual = assert_same(encoder, texts)
        (actual.vectors_BKH.sum() + actual.weights_BT.sum()).backward()
    for name, parameter in trainable_parameters(encoder.backbone).items():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(("case", "readout"), CASES)
def test_trained_saved_and_loaded(case: str, readout: str, folder_of: FolderOf, tmp_path: Path) -> None:
    retriever = config_of(case, folder_of, budget="q2p3", readout=readout, **NESTED)
    session = session_of(retriever, quick_recipe(max_steps=2, **SLOTS))
    backbone = session.encoder.backbone
    hidden = backbone.hidden_size
    matrices = {"states": 1, "pooling": 3}[readout]
    lora = sum(p.numel() for name, p in trainable_parameters(backbone).items() if ".lora_" in name)
    expected = lora + 4 * hidden + matrices * hidden * hidden
    assert session.manifest.trainable == expected
    assert backbone.slot_layers is not None
    before = {name: tensor.clone() for name, tensor in backbone.slot_layers.tensors().items()}
    run(session, 2)
    after = backbone.slot_layers.tensors()
    weights_V = after.pop("word_weights")
    assert torch.equal(weights_V, before["word_weights"])
    assert len(weights_V.unique()) > 2, "words of the training set are more and less frequent"
    assert all(not torch.equal(tensor, before[name]) for name, tensor in after.items())
    written = session.save_adapter(tmp_path / "adapter")
    assert written.slots is not None
    for name, tensor in load_file(tmp_path / "adapter" / SLOTS_FILE).items():
        assert torch.equal(tensor, backbone.slot_layers.tensors()[name])
    place = retriever.backbone.model_copy(update={"adapter": str(tmp_path / "adapter"), "merge_adapter": False})
    loaded = load_encoder(retriever.model_copy(update={"backbone": place}), "cpu")
    actual, trained = loaded.encode_queries(TEXTS), session.encoder.encode_queries(TEXTS)
    np.testing.assert_array_equal(actual.vectors_MH, trained.vectors_MH)
    np.testing.assert_array_equal(actual.impact_weights, trained.impact_weights)


@pytest.mark.parametrize("attention", ["sdpa", "packed"])
def test_an_adapter_on_slots_leaves_the_text_alone(attention: str, folder_of: FolderOf, tmp_path: Path) -> None:
    fields: dict[str, object] = {"budget": "q2p3", "readout": "pooling", "adapter_on": "slots", **NESTED}
    retriever = config_of("masked-bert", folder_of, **fields)
    session = session_of(retriever, quick_recipe(max_steps=3, **SLOTS))
    run(session, 3)
    trained = session.encoder.encode_queries(TEXTS)
    session.save_adapter(tmp_path / "adapter")
    place = retriever.backbone.model_copy(update={"adapter": str(tmp_path / "adapter"), "attention": attention})
    loaded = cast("MaskedEncoder", load_encoder(retriever.model_copy(update={"backbone": place}), "cpu"))
    actual = loaded.encode_queries(TEXTS)
    np.testing.assert_allclose(np.float32(actual.vectors_MH), np.float32(trained.vectors_MH), atol=1e-3)
    layers = loaded.backbone.slot_layers
    assert layers is not None
    assert layers.residual is not None
    layers.residual.zero_()
    means_MH = np.float32(loaded.encode_queries(TEXTS).vectors_MH)
    own = cast("MaskedEncoder", load_encoder(retriever, "cpu"))
    zeros_HH = torch.zeros_like(layers.residual)
    attach_slot_layers(own.backbone.model, SlotLayers(residual_HH=zeros_HH, attention_HH=zeros_HH))
    own_MH = np.float32(own.encode_queries(TEXTS).vectors_MH)
    np.testing.assert_allclose(means_MH, own_MH, atol=1e-3)
    assert np.abs(np.float32(actual.vectors_MH) - own_MH).max() > 1e-3, "and slots are not what they were"
    with pytest.raises(ValueError, match=r"adapter on slots only .* cannot be compiled"):
        loaded.compile_layers()


def test_slots_run_with_short_texts(folder_of: FolderOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts run before their slots, short ones together with them; results are equal."""
    retriever = config_of("masked-bert", folder_of, budget="q2p3", readout="pooling", adapter_on="slots", **NESTED)
    session = session_of(retriever, quick_recipe(max_steps=3, **SLOTS))
    run(session, 3)
    session.save_adapter(tmp_path / "adapter")
    place = retriever.backbone.model_copy(update={"adapter": str(tmp_path / "adapter"), "attention": "packed"})
    encoder = cast("MaskedEncoder", load_encoder(retriever.model_copy(update={"backbone": place}), "cpu"))
    actual = []
    for border in (10**6, 1):
        monkeypatch.setattr("diffretriever.backbones.base.MIN_SEPARATE_TOKENS", border)
        actual.append(encoder.encode_queries(TEXTS[:1]))
    together, apart = actual
    np.testing.assert_allclose(np.float32(together.vectors_MH), np.float32(apart.vectors_MH), atol=1e-3)
    np.testing.assert_allclose(together.impact_weights, apart.impact_weights, atol=1e-3)


def test_packed_slots_have_the_gradients_of_padded_ones(folder_of: FolderOf) -> None:
    retriever = config_of("masked-bert", folder_of, budget="q2p3", readout="pooling", adapter_on="slots", **NESTED)
    trainings = []
    for attention in ("sdpa", "packed"):
        place = retriever.backbone.model_copy(update={"attention": attention})
        recipe = quick_recipe(max_steps=3, lora_dropout=0.0, **SLOTS)
        trainings.append(run(session_of(retriever.model_copy(update={"backbone": place}), recipe), 3))
    for padded, packed in zip(*trainings, strict=True):
        assert packed.loss == pytest.approx(padded.loss, rel=1e-4)
        assert packed.gradient_norm == pytest.approx(padded.gradient_norm, rel=1e-3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("slot_positions", "spread", r"slot_positions 'natural' \(here 'spread'\)"),
        ("nested_slots", False, r"nested_slots True \(here False\)"),
        ("readout", "pooling", r"readout 'states' \(here 'pooling'\)"),
        ("adapter_on", "slots", r"adapter_on 'all' \(here 'slots'\)"),
        ("prompt", PromptConfig(variant="few"), "the adapter was trained with prompt"),
    ],
)
def test_a_retriever_that_the_adapter_was_not_trained_for(
    field: str, value: object, message: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    retriever = config_of("masked-bert", folder_of, slot_positions="natural", **NESTED)
    session_of(retriever, quick_recipe(max_steps=1, **SLOTS)).save_adapter(tmp_path / "adapter")
    place = retriever.backbone.model_copy(update={"adapter": str(tmp_path / "adapter")})
    fitting = retriever.model_copy(update={"backbone": place, "budget": Budget(4, 1), "sparse_topk": 3})
    assert load_encoder(fitting, "cpu").encode_queries(["river"]).vectors_MH.shape[0] == 4
    with pytest.raises(ValueError, match=message):
        load_encoder(fitting.model_copy(update={field: value}), "cpu")


def test_slots_that_pool_start_near_the_mean_and_apart(folder_of: FolderOf) -> None:
    retriever = config_of("masked-bert", folder_of, budget="q2p3", readout="pooling", **NESTED | {"tail_length": 1})
    slots = session_of(retriever.model_copy(update={"slot_positions": "spread"}), quick_recipe(**SLOTS)).encoder
    mean_BH = (
        load_encoder(config_of("pooled-bert", folder_of), "cpu").encode_queries(TEXTS).vectors_MH.astype(np.float32)
    )
    found_BKH = slots.encode_queries(TEXTS).vectors_MH.astype(np.float32).reshape(len(TEXTS), 2, -1)
    assert np.einsum("bkh,bh->bk", found_BKH, mean_BH).min() > 0.9
    assert np.abs(found_BKH[:, 0] - found_BKH[:, 1]).max() > 1e-3

"""Training encodes as the encoders do, in fp32 without dropout."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch

from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.training.adapters import attach_lora, trainable_parameters
from diffretriever.training.trainable import TextVectors, encode_with_gradients
from tests.training.trainer_cases import CONTRACT, WORDS, FolderOf, config_of, quick_recipe

TEXTS = [
    "honey bees store water in winter",
    "A river of copper: 'water', honey and sand!",
    "",
    "river",
    " ".join(WORDS * 3),
]


def load(case: str, folder_of: FolderOf, **changes: object) -> BackboneEncoder:
    encoder = load_encoder(config_of(case, folder_of, **changes), "cpu")
    assert isinstance(encoder, BackboneEncoder)
    return encoder


def changed(encoder: BackboneEncoder, **recipe: object) -> BackboneEncoder:
    attach_lora(encoder.backbone, quick_recipe(**recipe))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in trainable_parameters(encoder.backbone).items():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)
    return encoder


def assert_same(encoder: BackboneEncoder, texts: list[PreparedText]) -> TextVectors:
    expected = encoder.encode(texts)
    actual = encode_with_gradients(encoder, texts)
    assert actual.vectors_BKH.dtype == actual.weights_BT.dtype == torch.float32
    np.testing.assert_array_equal(actual.valid_BK.sum(1), np.diff(expected.offsets))
    vectors_MH = actual.vectors_BKH[actual.valid_BK].detach().numpy()
    np.testing.assert_allclose(vectors_MH, expected.vectors_MH.astype(np.float32), atol=5e-4, rtol=0)
    assert not actual.vectors_BKH[~actual.valid_BK].any()
    positive_BT = (actual.weights_BT > 0) & actual.known_BT
    np.testing.assert_array_equal(actual.ids_BT[positive_BT], expected.impact_ids)
    np.testing.assert_allclose(
        actual.weights_BT[positive_BT].detach().numpy(), expected.impact_weights, atol=1e-4, rtol=1e-4
    )
    assert not actual.weights_BT[~actual.known_BT].any()
    return actual


SETTINGS: list[tuple[str, dict[str, object]]] = [
    *((case, {}) for case in CONTRACT),
    ("masked-dream", {"read_offset": -1, "tail_length": 1}),
    ("masked-bert", {"slot_positions": "natural"}),
    ("generated-llama3", {"stop": "cap-then-cut", "max_tokens": 6}),
    ("generated-qwen2", {"max_tokens": 1}),
    ("pooled-qwen2", {"pooling": "mean"}),
]


@pytest.mark.parametrize(("case", "changes"), SETTINGS)
def test_training_sees_what_the_encoder_gives(case: str, changes: dict[str, object], folder_of: FolderOf) -> None:
    encoder = changed(load(case, folder_of, **changes))
    for texts in (encoder.preparer.prepare_queries(TEXTS), encoder.preparer.prepare_passages([""] * 5, TEXTS)):
        actual = assert_same(encoder, texts)
        if "sparse" in encoder.config.modes:
            assert actual.weights_BT.max() > 0, "the texts have impacts"


@pytest.mark.parametrize("case", ["masked-dream", "generated-qwen2"])
def test_texts_of_different_lengths_are_encoded_in_several_passes(
    case: str, folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = changed(load(case, folder_of))
    budgets = [3, 1, 4, 1, 2] if case.startswith("masked") else None
    texts = encoder.preparer.prepare_queries(TEXTS, budgets)
    together = encode_with_gradients(encoder, texts)
    monkeypatch.setattr("diffretriever.training.trainable._MIN_TOKENS_CPU", 1)
    with patch.object(encoder, "forward", wraps=encoder.forward) as forward:
        grouped = encode_with_gradients(encoder, texts)
    passes = [len(call.args[0]) for call in forward.call_args_list]
    assert len(passes) > 1
    assert sum(passes) == len(texts)
    for one, other in zip(grouped, together, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_clusters_are_not_trained(folder_of: FolderOf) -> None:
    encoder = changed(load("tokens-bert", folder_of, clusters=2))
    passages = encoder.preparer.prepare_passages([""] * 5, TEXTS)
    actual = encode_with_gradients(encoder, passages)
    assert actual.valid_BK.sum(1).tolist() == [len(text.input_ids) for text in passages]
    assert np.diff(encoder.encode(passages).offsets).max() == 2


def test_checkpointing_changes_no_gradient(folder_of: FolderOf) -> None:
    gradients = []
    for checkpointing in (False, True):
        encoder = changed(load("masked-dream", folder_of), gradient_checkpointing=checkpointing)
        encoder.backbone.model.train()
        torch.manual_seed(3)
        encode_with_gradients(encoder, encoder.preparer.prepare_queries(TEXTS)).vectors_BKH[..., 0].sum().backward()
        gradients.append([parameter.grad for parameter in trainable_parameters(encoder.backbone).values()])
    for without, with_it in zip(*gradients, strict=True):
        assert without is not None
        torch.testing.assert_close(with_it, without)


@pytest.mark.parametrize("case", ["masked-bert", "pooled-llada", "generated-qwen2"])
def test_packed_texts_give_the_same_gradients_in_one_pass(
    case: str, folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = []
    for attention, min_tokens in (("sdpa", 1), ("packed", 10_000)):
        monkeypatch.setattr("diffretriever.training.trainable._MIN_TOKENS_CPU", min_tokens)
        place = config_of(case, folder_of).backbone.model_copy(update={"attention": attention})
        encoder = changed(load(case, folder_of, backbone=place.model_dump()))
        assert encoder.is_packed == (attention == "packed")
        actual = encode_with_gradients(encoder, encoder.preparer.prepare_queries(TEXTS))
        (actual.vectors_BKH[..., 0].sum() + actual.weights_BT.sum()).backward()
        gradients.append([parameter.grad for parameter in trainable_parameters(encoder.backbone).values()])
    for padded, packed in zip(*gradients, strict=True):
        assert padded is not None
        torch.testing.assert_close(packed, padded, atol=1e-4, rtol=1e-3)

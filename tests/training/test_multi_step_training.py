"""Training over several passes, held against one text at a time in plain loops (paper App. A.1).

Legend: K slots, H hidden size.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.training.adapters import trainable_parameters
from diffretriever.training.trainable import TrainableEncoder
from tests.encoders.test_multi_step import confidence_of, count_of
from tests.training.test_trainable import TEXTS, changed, load
from tests.training.trainer_cases import FolderOf, config_of, quick_recipe, run, session_of

PASSES: tuple[tuple[str, dict[str, object]], ...] = (
    ("masked-dream", {"steps": 2, "read_offset": -1}),
    ("masked-llada-2step", {}),
    ("masked-bert", {"steps": 3, "confidence": "max-probability"}),
)


class Slots(NamedTuple):
    """Unit vectors of a text's slots."""

    vectors_KH: Tensor
    last_K: list[bool]
    """Filled by the last pass."""


def read_slowly(encoder: BackboneEncoder, text: PreparedText) -> Slots:
    """One text: without gradients up to its last pass, whose slots alone have them."""
    config = encoder.config
    assert config.method == "masked"
    batch = encoder.masked_batch([text], torch.zeros(1, 0, dtype=torch.int64))  # type: ignore[attr-defined]
    ids_1L, places = batch.ids_BL.clone(), batch.columns_BK[0].tolist()
    passes, found = min(config.steps, len(places)), dict[int, Tensor]()
    last: list[int] = []
    for step in range(passes):
        last = [k for k in range(len(places)) if k not in found]
        with torch.set_grad_enabled(step == passes - 1):
            hidden, logits = encoder.backbone.forward(
                ids_1L, batch.mask_BL, torch.tensor([places]) + config.read_offset, position_ids=batch.position_ids_BL
            )
        surest = sorted(last, key=lambda k: -confidence_of(logits[0, k].detach(), config.confidence))
        for k in surest[: count_of(len(places), len(last), step, passes, config.schedule)]:
            found[k] = torch.nn.functional.normalize(hidden[0, k], dim=0)
            ids_1L[0, places[k]] = int(logits[0, k].argmax())
    return Slots(torch.stack([found[k] for k in range(len(places))]), [k in last for k in range(len(places))])


def gradients(encoder: BackboneEncoder, loss: Tensor) -> dict[str, Tensor]:
    parameters = trainable_parameters(encoder.backbone)
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def directions(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(("case", "changes"), PASSES)
def test_vectors_and_gradients_are_those_of_each_text_read_slowly(
    case: str, changes: dict[str, object], folder_of: FolderOf
) -> None:
    """Also of texts that have fewer slots than there are passes, beside others."""
    encoder = changed(load(case, folder_of, **changes))
    texts = encoder.preparer.prepare_queries(TEXTS, [4, 1, 2, 4, 3])
    found = TrainableEncoder(encoder).encode_batch(texts)
    weights_BKH = directions(*found.vectors_BKH.shape)
    slowly = [read_slowly(encoder, text) for text in texts]
    for row, slots in enumerate(slowly):
        torch.testing.assert_close(found.vectors_BKH[row, : len(slots.last_K)], slots.vectors_KH, atol=1e-5, rtol=0)
        assert all(slots.last_K) == (len(slots.last_K) == 1)
    expected = torch.stack(
        [(s.vectors_KH * w[: len(s.last_K)]).sum() for s, w in zip(slowly, weights_BKH, strict=True)]
    )
    theirs = gradients(encoder, expected.sum())
    for name, gradient in gradients(encoder, (found.vectors_BKH * weights_BKH).sum()).items():
        torch.testing.assert_close(gradient, theirs[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("case", "changes"), PASSES)
def test_slots_of_earlier_passes_are_constants(case: str, changes: dict[str, object], folder_of: FolderOf) -> None:
    encoder = changed(load(case, folder_of, **changes), gradient_checkpointing=True, lora_dropout=0.0)
    (text,) = encoder.preparer.prepare_queries(TEXTS[:1], [4])
    last_K = torch.tensor(read_slowly(encoder, text).last_K)
    encoder.backbone.model.train()
    early, late = (
        TrainableEncoder(encoder).encode_batch([text]).vectors_BKH[0, kept_K] for kept_K in (~last_K, last_K)
    )
    assert not any(gradient.any() for gradient in gradients(encoder, early.sum()).values())
    assert all(gradient.any() for gradient in gradients(encoder, late.sum()).values())


@pytest.mark.parametrize(("case", "changes"), PASSES)
def test_a_trained_adapter_gives_in_searches_what_training_sees(
    case: str, changes: dict[str, object], folder_of: FolderOf, tmp_path: Path
) -> None:
    retriever = config_of(case, folder_of, **changes)
    session = session_of(retriever, quick_recipe(max_steps=2))
    run(session, 2)
    session.save_adapter(tmp_path / "adapter")
    place = retriever.backbone.model_copy(update={"adapter": str(tmp_path / "adapter"), "merge_adapter": False})
    loaded = load_encoder(retriever.model_copy(update={"backbone": place}), "cpu")
    assert isinstance(loaded, BackboneEncoder)
    texts = loaded.preparer.prepare_passages([""] * len(TEXTS), TEXTS)
    seen = TrainableEncoder(session.encoder).encode_batch(texts)
    stored = loaded.represent(texts, loaded.encode_batch(texts))
    vectors_MH = seen.vectors_BKH[seen.valid_BK].detach()
    np.testing.assert_array_equal(vectors_MH.to(torch.float16).numpy(), stored.vectors_MH)
    np.testing.assert_array_equal(
        seen.weights_BT[(seen.weights_BT > 0) & seen.known_BT].detach().numpy(), stored.impact_weights
    )
    one_pass = retriever.model_copy(update={"steps": 1})
    at_once = TrainableEncoder(type(loaded)(one_pass, loaded.backbone, loaded.preparer))
    with torch.no_grad():
        assert not torch.allclose(at_once.encode_batch(texts).vectors_BKH, seen.vectors_BKH, atol=1e-2)

"""Training over several passes, held against one text at a time in plain loops (paper App. A.1).

Legend: K slots, H hidden size.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.training.adapters import trainable_parameters
from diffretriever.training.trainable import TrainableEncoder
from tests.encoders.test_multi_step import confidence_of, count_of
from tests.training.test_trainable import TEXTS, changed, load
from tests.training.trainer_cases import FolderOf

PASSES: tuple[tuple[str, dict[str, object]], ...] = (
    ("masked-dream", {"steps": 2, "read_offset": -1}),
    ("masked-llada-2step", {}),
    ("masked-bert", {"steps": 3}),
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
        surest = sorted(last, key=lambda k: -confidence_of(logits[0, k].detach()))
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

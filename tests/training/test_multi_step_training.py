"""Training over several passes equals plain loops over one text at a time (paper App. A.1).

Legend: K slots, H hidden size.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffretriever.encoders.base import BackboneEncoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.training.adapters import trainable_parameters
from diffretriever.training.trainable import encode_with_gradients
from tests.encoders.test_multi_step import fill_slowly
from tests.training.test_trainable import TEXTS, changed, load
from tests.training.trainer_cases import FolderOf

PASSES: tuple[tuple[str, dict[str, object]], ...] = (
    ("masked-dream", {"steps": 2, "read_offset": -1}),
    ("masked-llada-2step", {}),
    ("masked-bert", {"steps": 3}),
)


def gradients(encoder: BackboneEncoder, loss: Tensor) -> dict[str, Tensor]:
    parameters = trainable_parameters(encoder.backbone)
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def directions(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(("case", "changes"), PASSES)
def test_vectors_and_gradients_are_those_of_each_text_read_slowly(
    case: str, changes: dict[str, object], folder_of: FolderOf
) -> None:
    encoder = changed(load(case, folder_of, **changes))
    assert isinstance(encoder, MaskedEncoder)
    texts = encoder.preparer.prepare_queries(TEXTS, [4, 1, 2, 4, 3])
    actual = encode_with_gradients(encoder, texts)
    weights_BKH = directions(*actual.vectors_BKH.shape)
    expected = torch.zeros(())
    for row, text in enumerate(texts):
        slots = fill_slowly(encoder, text)
        vectors_KH = torch.nn.functional.normalize(torch.stack([slot.hidden_H for slot in slots]), dim=1)
        torch.testing.assert_close(actual.vectors_BKH[row, : text.slots], vectors_KH, atol=1e-5, rtol=0)
        assert len({slot.step for slot in slots}) == min(encoder.config.steps, text.slots)
        expected = expected + (vectors_KH * weights_BKH[row, : text.slots]).sum()
    theirs = gradients(encoder, expected)
    for name, gradient in gradients(encoder, (actual.vectors_BKH * weights_BKH).sum()).items():
        torch.testing.assert_close(gradient, theirs[name], atol=1e-4, rtol=1e-3)

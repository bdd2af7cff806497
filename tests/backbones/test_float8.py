"""Layers in 8 bits: rounding, and unsupported devices.

Legend: T tokens, I inputs and O outputs of a linear map.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffretriever.backbones import device
from diffretriever.backbones.float8 import E4M3, Float8Linear, check_float8, to_e4m3
from diffretriever.backbones.loader import load_backbone
from tests.backbones.helpers import BackboneOf, FolderOf, hidden, pad, texts

BATCH = pad(texts(12, 7, 12), side="right")


def test_each_row_is_scaled_to_the_e4m3_range() -> None:
    values_TI = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1], [1e-3], [300], [0]])
    found_TI, scale_T1 = to_e4m3(values_TI.bfloat16())
    assert found_TI.dtype == E4M3
    assert torch.equal(found_TI.float().abs().amax(1), torch.tensor([448.0, 448.0, 448.0, 0.0]))
    # Four significant bits, and steps of 2^-9 near zero; the values have eight.
    exact_TI = values_TI / scale_T1
    torch.testing.assert_close(found_TI.float(), exact_TI, rtol=2**-4 + 2**-8, atol=2**-10)


def test_only_layers_are_converted(family: str, folder_of: FolderOf, backbone_of: BackboneOf) -> None:
    exact = backbone_of(family)
    loaded = load_backbone(folder_of(family), dtype="float8", device="cpu")
    assert loaded.precision == "float8"
    assert loaded.dtype == torch.bfloat16
    assert loaded.weights_digest == exact.weights_digest
    linear = {name for name, module in exact.model.named_modules() if isinstance(module, nn.Linear)}
    changed = {name for name, module in loaded.model.named_modules() if isinstance(module, Float8Linear)}
    assert changed == {name for name in linear if "layer" in name}
    actual, expected = hidden(loaded, BATCH), hidden(exact, BATCH)
    assert actual.dtype == torch.bfloat16
    cosines = torch.cosine_similarity(actual.float(), expected, dim=-1)
    assert cosines.min() > 0.98
    assert cosines.max() < 0.99999


def test_an_adapter_is_merged_first(folder_of: FolderOf, adapter_of: FolderOf) -> None:
    adapted = load_backbone(folder_of("dream"), device="cpu", adapter=adapter_of("dream"))
    actual = load_backbone(folder_of("dream"), dtype="float8", device="cpu", adapter=adapter_of("dream"))
    assert torch.cosine_similarity(hidden(actual, BATCH).float(), hidden(adapted, BATCH), dim=-1).min() > 0.95
    with pytest.raises(ValueError, match="dtype 'float8' needs a merged adapter"):
        load_backbone(folder_of("dream"), dtype="float8", adapter=adapter_of("dream"), merge_adapter=False)


def test_gpus_and_methods_without_float8_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    for actual in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, actual=actual: actual)
        check_float8(gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(ValueError, match=r"needs a GPU of compute capability 8\.9 or later.*; A100 has 8\.0"):
        check_float8(gpu)
    check_float8(torch.device("cpu"))
    with pytest.raises(ValueError, match=r"only for reranking, and for encoding by the methods .*: use bfloat16"):
        device.resolve_dtype("float8", torch.device("cpu"))

"""Random backbones on the device equal the checkpoints written from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffretriever.backbones.loader import load_backbone
from diffretriever.testing import FAMILIES
from diffretriever.testing.checkpoints import build_tokenizer
from diffretriever.testing.on_device import random_backbone, write_checkpoint
from diffretriever.testing.published import Sizes
from tests.backbones.helpers import hidden, pad, texts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_backbone_equals_its_checkpoint(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = FAMILIES[family]
    size = Sizes(
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=2 if published.grouped_heads else 4,
        intermediate=128,
        vocab=build_tokenizer(published).get_vocab_size(),
        positions=published.positions,
    )
    drawn = random_backbone(family, size, tmp_path, device="cpu", dtype="float32")
    assert not drawn.model.training
    monkeypatch.setattr("diffretriever.testing.on_device._SHARD_BYTES", 100_000)
    read = load_backbone(write_checkpoint(drawn, tmp_path), device="cpu", attention="sdpa")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    batch = pad(texts(5, 23, 11))
    found = hidden(drawn, batch)
    assert torch.equal(found, hidden(read, batch))
    assert found.std() > 0.1, "states are neither constant nor tiny"
    again = random_backbone(family, size, tmp_path / "again", device="cpu", dtype="float32")
    assert torch.equal(found, hidden(again, batch))

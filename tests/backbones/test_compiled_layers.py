"""Compiled layers give the same states with few graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from diffretriever.backbones.loader import load_backbone
from tests.backbones.helpers import BackboneOf, FolderOf, hidden, pad, texts

TOLERANCE = 2e-5
MOST_GRAPHS = 5
"""With and without pads, one row and several; a length that happens to be another size of the first batch costs one.
Packed: what lies before, between and after attention, and a first layer that begins otherwise."""


@pytest.fixture(autouse=True)
def _own_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("family", "attention"), [("dream", "packed"), ("modernbert", "sdpa")])
def test_states_are_the_same_and_graphs_are_few(
    family: str, attention: str, folder_of: FolderOf, backbone_of: BackboneOf
) -> None:
    counting = CompileCounter()
    compiled, plain = load_backbone(folder_of(family), device="cpu", attention=attention), backbone_of(family)
    compiled.compile_layers(counting)
    drawing = random.Random(1)
    for number in range(12):
        lengths = [drawing.randint(3, 80) for _ in range(drawing.choice((1, 1, 2, 3, 7, 16)))]
        batch = pad(texts(*lengths, seed=number), side="right")
        torch.testing.assert_close(hidden(compiled, batch), hidden(plain, batch), atol=TOLERANCE, rtol=0)
    assert 1 <= counting.frame_count <= MOST_GRAPHS

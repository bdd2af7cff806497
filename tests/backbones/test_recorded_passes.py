"""Passes that are recorded for replay: the same states, few shapes, one place for the inputs of each.

On a CPU a recording is the pass itself; shapes, padding, places and copies are those of a GPU.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock, call

import pytest
import torch
from torch import Tensor

from diffretriever.backbones import Backbone, load_backbone
from diffretriever.backbones.graphs import MOST_LENGTH, MOST_ROWS, PassGraphs, Shape, _captured, _Gpu
from diffretriever.backbones.inputs import PassInputs, rung, whole_steps
from diffretriever.backbones.slot_layers import SlotLayers, attach_slot_layers
from tests.backbones.helpers import BackboneOf, FolderOf, hidden, pad, texts

TOLERANCE = 2e-5
LADDER = [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]


@pytest.fixture
def recorded(family: str, folder_of: FolderOf) -> Backbone:
    loaded = load_backbone(folder_of(family), device="cpu")
    loaded.record_passes()
    return loaded


def inputs_of(*lengths: int) -> PassInputs:
    batch = pad(texts(*lengths), side="right")
    return PassInputs(batch.ids_BL, batch.mask_BL, torch.arange(max(lengths)).expand(batch.ids_BL.shape), None)


def test_the_ladder() -> None:
    assert sorted({rung(tokens) for tokens in range(1, 257)}) == LADDER
    assert sorted({rung(tokens) for tokens in range(257, 1025)}) == [320, 384, 448, 512, 640, 768, 896, 1024]
    assert all(tokens <= rung(tokens) for tokens in range(1, 1025))
    assert [whole_steps(torch.zeros(3, tokens)) for tokens in (1, 16, 17)] == [(3, 16), (3, 16), (3, 32)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_states_are_the_same(recorded: Backbone, family: str, backbone_of: BackboneOf, side: str) -> None:
    plain = backbone_of(family)
    for lengths in ((9,), (16,), (5, 23, 11), (40, 8)):
        batch = pad(texts(*lengths, seed=len(lengths)), side=side)
        torch.testing.assert_close(hidden(recorded, batch), hidden(plain, batch), atol=TOLERANCE, rtol=0)
    assert [(shape.rows, shape.length) for shape in recorded.recorded_shapes] == [(1, 16), (4, 32), (2, 48)]


@torch.inference_mode()
def test_slots_and_positions_too(recorded: Backbone, family: str, backbone_of: BackboneOf) -> None:
    plain = backbone_of(family)
    ids_BL, mask_BL, last_B1 = pad(texts(9, 6), side="right")
    slots_BL = torch.full_like(ids_BL, -1)
    slots_BL[0, 5:8], slots_BL[1, 3:5] = torch.arange(3), torch.arange(2)
    positions_BL = torch.where(slots_BL >= 0, 400 - 16 * slots_BL, torch.arange(9))
    for nested in (False, True) if not plain.is_causal else (False,):
        found, expected = (
            each.forward(
                ids_BL, mask_BL, last_B1 - torch.arange(4), position_ids=positions_BL, slots=slots_BL, nested=nested
            )
            for each in (recorded, plain)
        )
        torch.testing.assert_close(found.hidden, expected.hidden, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("lengths", [(MOST_LENGTH + 1,), (4,) * (MOST_ROWS + 1), (200,) * 6])
def test_larger_passes_run_as_ever(lengths: tuple[int, ...], folder_of: FolderOf, backbone_of: BackboneOf) -> None:
    backbone = load_backbone(folder_of("dream"), device="cpu")
    backbone.record_passes()
    batch = pad(texts(*lengths), side="right")
    assert torch.equal(hidden(backbone, batch), hidden(backbone_of("dream"), batch))
    assert not backbone.recorded_shapes


def test_passes_with_gradients_are_not_recorded(folder_of: FolderOf) -> None:
    backbone = load_backbone(folder_of("dream"), device="cpu")
    backbone.record_passes()
    backbone.forward(*pad(texts(6))).logits.sum().backward()
    assert backbone.model.get_input_embeddings().weight.grad is not None
    assert not backbone.recorded_shapes


@torch.inference_mode()
def test_a_recording_reads_one_place() -> None:
    seen: list[tuple[int, ...]] = []

    def run(inputs: PassInputs, nested: bool) -> Tensor:
        assert not nested
        seen.append(tuple(tensor.data_ptr() for tensor in inputs if tensor is not None))
        return (inputs.ids_BL * inputs.mask_BL).float()[..., None]

    graphs = PassGraphs(run, torch.device("cpu"))
    first = graphs.states(inputs_of(9), nested=False)
    kept = first.clone()
    second = graphs.states(inputs_of(12), nested=False)
    assert len(set(seen)) == 1, "the same addresses every time"
    assert len(seen) == 2
    assert torch.equal(first, kept), "what was given out stays as it is"
    assert first.shape == (1, 9, 1)
    assert second.shape == (1, 12, 1)
    assert graphs.shapes == [Shape(1, 16, has_slots=False, nested=False)]


@torch.inference_mode()
def test_how_a_gpu_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the calls that torch asks for, in their order: a stand-in notes them."""
    gpu = MagicMock()
    for name in ("CUDAGraph", "Stream", "current_stream", "device", "graph", "graph_pool_handle", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    gpu.Stream.return_value, gpu.graph_pool_handle.return_value = gpu.aside, gpu.pool
    states_RWH = torch.zeros(1, 16, 4)
    replay = _captured(lambda: gpu.run() and states_RWH, _Gpu.of(torch.device("cuda:1")))
    assert replay() is replay() is states_RWH
    graph = gpu.CUDAGraph.return_value
    assert gpu.graph.call_args == call(graph, pool=gpu.pool, stream=gpu.aside, capture_error_mode="thread_local")
    assert [made[0] for made in gpu.mock_calls if made[0] in {"run", "graph().__enter__", "CUDAGraph().replay"}] == [
        *["run"] * 3,
        "graph().__enter__",
        "run",
        *["CUDAGraph().replay"] * 2,
    ]
    assert gpu.aside.wait_stream.call_args == call(gpu.current_stream.return_value)
    assert gpu.current_stream.return_value.wait_stream.call_args == call(gpu.aside)


@pytest.mark.parametrize("dtype", ["float32", "float8"])
@torch.inference_mode()
def test_nothing_looks_at_values(family: str, dtype: str, folder_of: FolderOf) -> None:
    """A look at a value would wait for the GPU, which no recording can; tensors on the device `meta` have none."""
    backbone = load_backbone(folder_of(family), device="cpu", dtype=dtype)
    attach_slot_layers(backbone.model, SlotLayers(torch.zeros(2, backbone.hidden_size), None))
    backbone.model.to("meta")
    given = torch.zeros(2, 16, dtype=torch.long, device="meta")
    for slots_BL in (None, given):
        inputs = PassInputs(given, given, given, slots_BL)
        for nested in (False, True) if slots_BL is not None and not backbone.is_causal else (False,):
            assert backbone._recordable_states(inputs, nested).shape == (2, 16, backbone.hidden_size)


def test_several_threads_share_a_recording(folder_of: FolderOf, backbone_of: BackboneOf) -> None:
    backbone = load_backbone(folder_of("dream"), device="cpu")
    backbone.record_passes()
    batches = [pad(texts(10, seed=seed)) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: hidden(backbone, batch), batches))
    for states, batch in zip(found, batches, strict=True):
        torch.testing.assert_close(states, hidden(backbone_of("dream"), batch), atol=TOLERANCE, rtol=0)


def test_slots_are_checked_before(folder_of: FolderOf) -> None:
    backbone = load_backbone(folder_of("dream"), device="cpu")
    attach_slot_layers(backbone.model, SlotLayers(torch.zeros(2, backbone.hidden_size), None))
    backbone.record_passes()
    ids, mask, last = pad(texts(6))
    with torch.inference_mode(), pytest.raises(ValueError, match="a text with 6 slots, but the adapter was trained"):
        backbone.forward(ids, mask, last, slots=torch.arange(6)[None])
    assert not backbone.recorded_shapes

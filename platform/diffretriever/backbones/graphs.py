"""Passes over few tokens, recorded once for each shape and replayed: what a GPU does for a query, without the host.

A model of 7B parameters launches some six hundred kernels a pass, and the host takes longer to launch them than the GPU
to read its weights. A CUDA graph launches all of them at once, at the addresses that they were recorded with. So inputs
are copied to a place of their own, padded to one of a few shapes: more tokens cost nothing while the weights are what
takes time. Which slots are read is no part of a shape: the states of all columns come back, so that one graph serves
every K.

On a CPU a recorded pass is the pass itself: shapes, padding and places are the same.

Legend: B rows, L length, R rows and W length after padding, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from diffretriever.backbones.device import moved
from diffretriever.backbones.inputs import PassInputs, rung

MOST_ROWS = 8
MOST_LENGTH = 256
MOST_TOKENS = 1024
"""Rows times length: beyond it the GPU computes for longer than the host takes to launch."""
_WARM_UPS = 3
"""Passes before a recording, in which libraries set themselves up."""

Run: TypeAlias = Callable[[PassInputs, bool], Tensor]
"""Inputs on the device, and whether slots are nested → states [R, W, H]; it must not wait for the device."""


class Shape(NamedTuple):
    """What a recording is made for."""

    rows: int
    length: int
    has_slots: bool
    nested: bool

    @classmethod
    def of(cls, ids_BL: Tensor, slots_BL: Tensor | None, *, nested: bool) -> Shape:
        """Return the least shape that a batch fits into."""
        rows, length = ids_BL.shape
        return cls(1 << (rows - 1).bit_length(), rung(length), slots_BL is not None, nested)

    @property
    def is_recorded(self) -> bool:
        """Whether passes of this shape are recorded; others run as they always do."""
        return self.rows <= MOST_ROWS and self.length <= MOST_LENGTH and self.rows * self.length <= MOST_TOKENS


class _Recording(NamedTuple):
    inputs_XRW: Tensor
    """The place of the inputs, int64: ids, mask, positions and, where there are any, slots, one after the other."""
    replay: Callable[[], Tensor]


class PassGraphs:
    """The recorded passes of a backbone. For inference mode; several threads may use it."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        self._recordings: dict[Shape, _Recording] = {}
        # A recording's place holds one batch, and recordings share memory.
        self._lock = Lock()
        self._gpu = _Gpu.of(device) if device.type == "cuda" else None

    @property
    def shapes(self) -> list[Shape]:
        """The shapes that have been recorded."""
        return list(self._recordings)

    def states(self, inputs: PassInputs, *, nested: bool) -> Tensor:
        """Return the final states [B, L, H] of a batch whose shape is recorded, or can be.

        Args:
            inputs: int64 on the CPU, as `Backbone.forward` has checked them.
            nested: whether slots are.
        """
        rows, length = inputs.ids_BL.shape
        shape = Shape.of(inputs.ids_BL, inputs.slots_BL, nested=nested)
        assert shape.is_recorded, "other passes are not recorded"
        padded = inputs.padded(shape.rows, shape.length)
        inputs_XRW = torch.stack([tensor for tensor in padded if tensor is not None]).long()
        with self._lock:
            if shape not in self._recordings:
                self._recordings[shape] = self._record(shape, inputs_XRW.to(self._device, copy=True))
            recording = self._recordings[shape]
            recording.inputs_XRW.copy_(moved(inputs_XRW, self._device))
            # A copy, as the next replay writes to the same place.
            return recording.replay()[:rows, :length].clone()

    def _record(self, shape: Shape, inputs_XRW: Tensor) -> _Recording:
        slots_RW = inputs_XRW[3] if shape.has_slots else None
        inputs = PassInputs(inputs_XRW[0], inputs_XRW[1], inputs_XRW[2], slots_RW)
        run = partial(self._run, inputs, shape.nested)
        return _Recording(inputs_XRW, run if self._gpu is None else _captured(run, self._gpu))


class _Gpu(NamedTuple):
    """What the recordings of a backbone are made with."""

    device: torch.device
    stream: Any
    pool: Any
    """Memory, which they share: what one gives is copied before another runs."""

    @classmethod
    def of(cls, device: torch.device) -> _Gpu:
        return cls(device, torch.cuda.Stream(device), torch.cuda.graph_pool_handle())


def _captured(run: Callable[[], Tensor], gpu: _Gpu) -> Callable[[], Tensor]:
    """Return what replays `run` on a GPU, reading and writing where it does now."""
    with torch.cuda.device(gpu.device):
        gpu.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(gpu.stream):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(gpu.stream)
        graph = torch.cuda.CUDAGraph()
        # Searches may use the GPU from other threads meanwhile.
        with torch.cuda.graph(graph, pool=gpu.pool, stream=gpu.stream, capture_error_mode="thread_local"):
            states_RWH = run()

    def replay() -> Tensor:
        graph.replay()
        return states_RWH

    return replay

"""Captures short passes as CUDA graphs, one for each shape, and replays them.

Launching the hundreds of kernels of a 7B model one by one takes the host longer than the GPU needs for a short pass.
Inputs are padded to a few shapes and copied to a fixed buffer. Graphs return the states of all columns, for any K. On a
CPU, the pass runs on the padded inputs without a graph.

Legend: B rows, L length, R rows and W length after padding, X input tensors, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from diffretriever.backbones.device import moved
from diffretriever.backbones.inputs import PassInputs, rung

MOST_ROWS = 8
MOST_LENGTH = 256
MOST_TOKENS = 1024
"""Maximum of rows times length; for larger passes, launching is not the bottleneck."""
_WARM_UPS = 3
"""Passes before the capture, in which libraries initialise."""

Run: TypeAlias = Callable[[PassInputs, bool], Tensor]
"""Inputs on the device, and whether slots are nested → states [R, W, H]. It must not synchronise with the device."""


class Shape(NamedTuple):
    """The shape of a CUDA graph's inputs."""

    rows: int
    length: int
    has_slots: bool
    nested: bool

    @classmethod
    def of(cls, ids_BL: Tensor, slots_BL: Tensor | None, *, nested: bool) -> Shape:
        """Return the smallest shape for a batch."""
        rows, length = ids_BL.shape
        return cls(1 << (rows - 1).bit_length(), rung(length), slots_BL is not None, nested)

    @property
    def is_recorded(self) -> bool:
        """Whether passes of this shape are captured; larger ones run normally."""
        return self.rows <= MOST_ROWS and self.length <= MOST_LENGTH and self.rows * self.length <= MOST_TOKENS


class _Recording(NamedTuple):
    inputs_XRW: Tensor
    """Input buffer, int64: ids, mask, positions and, if any, slots."""
    replay: Callable[[], Tensor]


class PassGraphs:
    """The CUDA graphs of a backbone, for inference mode. Thread-safe."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        self._recordings: dict[Shape, _Recording] = {}
        # Graphs share memory, so a result must be copied before the next replay.
        self._lock = Lock()
        if device.type == "cuda":
            self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    @property
    def shapes(self) -> list[Shape]:
        """The captured shapes."""
        return list(self._recordings)

    def states(self, inputs: PassInputs, *, nested: bool) -> Tensor:
        """Return the final states [B, L, H] of a batch, capturing its shape on first use.

        The inputs are int64 on the CPU, checked by `Backbone.forward`, and of a shape that `is_recorded`.
        """
        rows, length = inputs.ids_BL.shape
        shape = Shape.of(inputs.ids_BL, inputs.slots_BL, nested=nested)
        assert shape.is_recorded, "passes of this shape are not captured"
        padded = inputs.padded(shape.rows, shape.length)
        inputs_XRW = torch.stack([tensor for tensor in padded if tensor is not None]).long()
        with self._lock:
            if shape not in self._recordings:
                self._recordings[shape] = self._record(shape, inputs_XRW.to(self._device, copy=True))
            recording = self._recordings[shape]
            recording.inputs_XRW.copy_(moved(inputs_XRW, self._device))
            return recording.replay()[:rows, :length].clone()

    def _record(self, shape: Shape, inputs_XRW: Tensor) -> _Recording:
        slots_RW = inputs_XRW[3] if shape.has_slots else None
        run = partial(self._run, PassInputs(inputs_XRW[0], inputs_XRW[1], inputs_XRW[2], slots_RW), shape.nested)
        return _Recording(inputs_XRW, run if self._device.type == "cpu" else self._captured(run))

    def _captured(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture `run` on a GPU and return a function that replays it at the same addresses."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    run()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU during the capture.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                states_RWH = run()

        def replay() -> Tensor:
            graph.replay()
            return states_RWH

        return replay

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

from diffretriever.backbones.device import to_device
from diffretriever.backbones.inputs import PassInputs, round_up_length

MAX_ROWS = 8
MAX_LENGTH = 256
MAX_TOKENS = 1024
"""Maximum of rows times length; for larger passes, launching is not the bottleneck."""
_WARM_UPS = 3
"""Passes before the capture, in which libraries initialise."""

RunPass: TypeAlias = Callable[[PassInputs, bool], Tensor]
"""Inputs on the device, and whether slots are nested → states [R, W, H]. It must not synchronise with the device."""


class GraphKey(NamedTuple):
    """The shape of a CUDA graph's inputs."""

    rows: int
    length: int
    has_slots: bool
    nested: bool

    @classmethod
    def of(cls, ids_BL: Tensor, slots_BL: Tensor | None, *, nested: bool) -> GraphKey:
        """Return the smallest shape for a batch."""
        rows, length = ids_BL.shape
        return cls(1 << (rows - 1).bit_length(), round_up_length(length), slots_BL is not None, nested)

    @property
    def is_captured(self) -> bool:
        """Whether passes of this shape are captured; larger ones run normally."""
        return self.rows <= MAX_ROWS and self.length <= MAX_LENGTH and self.rows * self.length <= MAX_TOKENS


class _CapturedGraph(NamedTuple):
    inputs_XRW: Tensor
    """Input buffer, int64: ids, mask, positions and, if any, slots."""
    replay: Callable[[], Tensor]


class PassGraphs:
    """The CUDA graphs of a backbone, for inference mode. Thread-safe."""

    def __init__(self, run: RunPass, device: torch.device) -> None:
        self._run, self._device = run, device
        self._graphs: dict[GraphKey, _CapturedGraph] = {}
        # Graphs share memory, so a result must be copied before the next replay.
        self._lock = Lock()
        if device.type == "cuda":
            self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    @property
    def keys(self) -> list[GraphKey]:
        """The captured shapes."""
        return list(self._graphs)

    def states(self, inputs: PassInputs, *, nested: bool) -> Tensor:
        """Return the final states [B, L, H] of a batch, capturing its shape on first use.

        The inputs are int64 on the CPU, checked by `Backbone.forward`, and of a shape that `is_captured`.
        """
        rows, length = inputs.ids_BL.shape
        key = GraphKey.of(inputs.ids_BL, inputs.slots_BL, nested=nested)
        assert key.is_captured, "passes of this shape are not captured"
        padded = inputs.padded(key.rows, key.length)
        inputs_XRW = torch.stack([tensor for tensor in padded if tensor is not None]).long()
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = self._prepare(key, inputs_XRW.to(self._device, copy=True))
            captured = self._graphs[key]
            captured.inputs_XRW.copy_(to_device(inputs_XRW, self._device))
            return captured.replay()[:rows, :length].clone()

    def _prepare(self, key: GraphKey, inputs_XRW: Tensor) -> _CapturedGraph:
        slots_RW = inputs_XRW[3] if key.has_slots else None
        run = partial(self._run, PassInputs(inputs_XRW[0], inputs_XRW[1], inputs_XRW[2], slots_RW), key.nested)
        return _CapturedGraph(inputs_XRW, run if self._device.type == "cpu" else self._capture(run))

    def _capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
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

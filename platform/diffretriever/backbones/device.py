"""A device: its name, dtype and attention kernel, which are fixed when a backbone is loaded, and its queue of batches.

A lock serialises launches; results are made outside of it. On a GPU a launch returns at once: passes and copies are
queued, and an event shows when their results are there.
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from diffretriever.backbones.cpu_tuning import computes_bfloat16
from diffretriever.schemas.retriever import TRAINABLE_METHODS

T = TypeVar("T")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOAT8 = "float8"
"""A precision that is no torch dtype: the layers of a backbone in 8 bits, the rest in bfloat16; see `float8`."""
ATTENTIONS = ("auto", "packed", "sdpa")
_FORCES_TF32 = "NVIDIA_TF32_OVERRIDE"
_VARLEN_CAPABILITY = (8, 0)


def resolve_device(device: str = "auto") -> torch.device:
    """Return the device named `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`.

    From then on this process computes fp32 products in fp32, as the bounds of exact search need.

    Raises:
        ValueError: Another name, a GPU that this process does not see, or one whose fp32 products are rounded.
    """
    found = _device_named(device)
    torch.set_float32_matmul_precision("highest")
    # cuDNN would plan each new shape of attention with a mask, for 60 to 80 ms, and then be no faster.
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    forced = os.environ.get(_FORCES_TF32, "")
    if found.type == "cuda" and forced not in ("", "0"):
        raise ValueError(
            f"{_FORCES_TF32}={forced} lets the GPU round what it multiplies in fp32 to 10 bits, and no setting of this "
            "process prevents it: vectors and scores would not be exact. Unset it, or set it to 0."
        )
    return found


def _device_named(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise ValueError(f"unknown device {device!r}. Use auto, cpu, cuda or cuda:N.")
    seen = torch.cuda.device_count()
    if int(match[1] or 0) >= seen:
        raise ValueError(f"device {device!r} asked for, but this process sees {seen} GPU(s). Use auto or cpu.")
    return torch.device(device)


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the torch dtype named `dtype`; `auto` is bfloat16 on a GPU and on a CPU with instructions for it.

    Raises:
        ValueError: Another name, or `float8`, which a backbone alone can be loaded in.
    """
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype == FLOAT8:
        raise ValueError(
            f"dtype '{FLOAT8}' is for encoding by the methods {', '.join(TRAINABLE_METHODS)}, and for reranking: take "
            "bfloat16 for training and for other methods."
        )
    if dtype != "auto":
        raise ValueError(f"unknown dtype {dtype!r}. Use auto, {', '.join(DTYPES)}.")
    return torch.bfloat16 if device.type == "cuda" or computes_bfloat16() else torch.float32


def has_varlen_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's attention over texts of any lengths in one row runs there: Ampere or later, in half precision."""
    if device.type != "cuda" or dtype == torch.float32 or not torch.backends.cuda.is_flash_attention_available():
        return False
    return torch.cuda.get_device_capability(device) >= _VARLEN_CAPABILITY


def resolve_attention(attention: str, device: torch.device, dtype: torch.dtype, *, packs: bool) -> str:
    """Return the attention to use; `auto` packs texts where that is faster.

    Args:
        attention: one of `ATTENTIONS`.
        device: where the model runs.
        dtype: of its weights.
        packs: whether the model takes packed texts.

    Raises:
        ValueError: Another name, or packed texts for a model that does not take them.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}. Use {', '.join(ATTENTIONS)}.")
    if attention == "auto":
        # On a CPU in bfloat16 packed texts are 1.1 to 1.4 times as fast.
        is_faster = has_varlen_kernel(device, dtype) or (device.type == "cpu" and dtype == torch.bfloat16)
        return "packed" if packs and is_faster else "sdpa"
    if attention == "packed" and not packs:
        raise ValueError("attention 'packed' is not for this model, which computes texts with pads: use auto or sdpa.")
    return attention


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of CPU threads that torch uses in this thread, for the duration of a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def moved(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor on `device`, in `dtype` or its own; a GPU copies it when its turn comes, and nobody waits."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device, dtype or tensor.dtype)
    # From other memory than pinned one a copy waits until the GPU has done all that was asked of it before. What was
    # expanded cannot be pinned: several of its elements are one.
    return tensor.to(dtype or tensor.dtype).contiguous().pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU; a GPU's values are in it once what was launched is waited for, and not before."""
    if tensor.device.type == "cpu":
        return tensor
    # To other memory than pinned one nothing is copied while the host goes on.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


@dataclass(frozen=True)
class Launched(Generic[T]):
    """A batch that was given to a device."""

    output: T
    """On a GPU, the values of tensors from `to_host` are there after `wait`."""
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None
    """Of a GPU: before and after the batch."""
    seconds: float = 0.0

    def wait(self) -> float:
        """Wait for the device; return the seconds in which it worked on the batch alone."""
        if self.events is None:
            return self.seconds
        started, ended = self.events
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1000


class DeviceQueue:
    """Gives a device one batch at a time, from any thread, and times it. On a CPU a launch computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()

    def launch(self, compute: Callable[..., T], *args: Any, is_small: bool = False) -> Launched[T]:
        """Have the device compute a batch; `is_small` batches take one thread of a CPU (`cpu_tuning.is_small_pass`).

        Raises:
            torch.OutOfMemoryError: there is no memory for the batch.
        """
        with self._lock:
            if self._device.type == "cuda":
                stream = torch.cuda.current_stream(self._device)
                # A thread that waits for such an event sleeps; others would spin.
                started, ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
                started.record(stream)
                output = compute(*args)
                ended.record(stream)
                return Launched(output, (started, ended))
            start = time.perf_counter()
            with torch_threads(1) if is_small else nullcontext():
                output = compute(*args)
            return Launched(output, None, time.perf_counter() - start)


def peak_memory(device: torch.device) -> int:
    """Return the most bytes so far: of tensors on a GPU, or on a CPU of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.exists():
        # Where there is no such file, as on macOS, this is in bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Of this program alone: the figure above goes on from what the process was before it.
    return next(int(line.split()[1]) for line in status.read_text("utf-8").splitlines() if "VmHWM:" in line) * 1024

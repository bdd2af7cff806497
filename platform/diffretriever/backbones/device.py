"""Device, dtype and attention of a backbone, copies between host and device, and the device's queue of batches.

A lock serialises launches. On a GPU, a launch returns at once, and an event shows when its results are complete.
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
"""Precision with 8-bit layers and all else in bfloat16, which is not a torch dtype; see `float8`."""
ATTENTIONS = ("auto", "packed", "sdpa")
_FORCES_TF32 = "NVIDIA_TF32_OVERRIDE"
_VARLEN_CAPABILITY = (8, 0)


def resolve_device(device: str = "auto") -> torch.device:
    """Return the device named `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`.

    It also disables TF32 in this process, because the bounds of exact search need fp32 products.

    Raises:
        ValueError: Unknown name, GPU not visible to this process, or TF32 is forced by the environment.
    """
    resolved = _device_named(device)
    torch.set_float32_matmul_precision("highest")
    # cuDNN plans each new shape of masked attention for 60 to 80 ms, and is not faster.
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    forced = os.environ.get(_FORCES_TF32, "")
    if resolved.type == "cuda" and forced not in ("", "0"):
        raise ValueError(
            f"{_FORCES_TF32}={forced} makes the GPU round fp32 inputs to 10 bits, so vectors and scores would not be "
            "exact: unset it, or set it to 0"
        )
    return resolved


def _device_named(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise ValueError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N")
    visible = torch.cuda.device_count()
    if int(match[1] or 0) >= visible:
        raise ValueError(f"device {device!r} requested, but this process sees {visible} GPU(s): use auto or cpu")
    return torch.device(device)


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the torch dtype named `dtype`; `auto` is bfloat16 on a GPU and on a CPU with instructions for it.

    Raises:
        ValueError: Unknown name, or `float8`, which only backbones support.
    """
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype == FLOAT8:
        raise ValueError(
            f"dtype '{FLOAT8}' is only for reranking, and for encoding by the methods {', '.join(TRAINABLE_METHODS)}: "
            "use bfloat16"
        )
    if dtype != "auto":
        raise ValueError(f"unknown dtype {dtype!r}: use auto, {', '.join(DTYPES)}")
    return torch.bfloat16 if device.type == "cuda" or computes_bfloat16() else torch.float32


def has_varlen_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's varlen attention supports the device: Ampere or later, in half precision."""
    if device.type != "cuda" or dtype == torch.float32 or not torch.backends.cuda.is_flash_attention_available():
        return False
    return torch.cuda.get_device_capability(device) >= _VARLEN_CAPABILITY


def resolve_attention(attention: str, device: torch.device, dtype: torch.dtype, *, packs: bool) -> str:
    """Return the attention to use. `auto` packs texts if `packs`, the model supports it and it is faster.

    Raises:
        ValueError: Unknown name, or packed texts for a model that does not support them.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}: use {', '.join(ATTENTIONS)}")
    if attention == "auto":
        # On a CPU in bfloat16, packed texts are 1.1 to 1.4 times as fast.
        is_faster = has_varlen_kernel(device, dtype) or (device.type == "cpu" and dtype == torch.bfloat16)
        return "packed" if packs and is_faster else "sdpa"
    if attention == "packed" and not packs:
        raise ValueError("this model does not support attention 'packed': use auto or sdpa")
    return attention


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Limit the CPU threads that torch uses in this thread, within a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def to_device(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor on `device`, optionally in another dtype, without waiting for a GPU."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device, dtype or tensor.dtype)
    # Only pinned memory is copied asynchronously; expanded tensors must be contiguous to be pinned.
    return tensor.to(dtype or tensor.dtype).contiguous().pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the CPU. A GPU's values are valid only after `Launched.wait`."""
    if tensor.device.type == "cpu":
        return tensor
    # Only copies to pinned memory are asynchronous.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


@dataclass(frozen=True)
class Launched(Generic[T]):
    """A batch that was launched on a device."""

    output: T
    """On a GPU, values of tensors from `to_host` are valid after `wait`."""
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None
    """A GPU's events before and after the batch."""
    seconds: float = 0.0

    def wait(self) -> float:
        """Wait for the batch and return its time on the device in seconds."""
        if self.events is None:
            return self.seconds
        started, ended = self.events
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1000


class DeviceQueue:
    """Launches batches on a device, one at a time, from any thread. On a CPU, a launch blocks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()

    def launch(self, compute: Callable[..., T], *args: Any, is_small: bool = False) -> Launched[T]:
        """Launch `compute(*args)`. On a CPU, `is_small` batches use one thread (`cpu_tuning.is_small_pass`).

        Raises:
            torch.OutOfMemoryError: The batch does not fit in device memory.
        """
        with self._lock:
            if self._device.type == "cuda":
                stream = torch.cuda.current_stream(self._device)
                # Blocking events, so that waiting threads sleep instead of spinning.
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
    """Return the peak memory in bytes: of tensors on a GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.exists():
        # macOS, where the value is in bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Unlike ru_maxrss, VmHWM does not include the process before exec.
    return next(int(line.split()[1]) for line in status.read_text("utf-8").splitlines() if "VmHWM:" in line) * 1024

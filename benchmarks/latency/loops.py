"""What the latency benchmark times: encoding one random text, and MaxSim search of random vectors.

Legend: L tokens, K query vectors, P passages of a block, N vectors of a passage, H hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch

from benchmarks.measuring import serve_child
from diffretriever.backbones.device import resolve_device
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.schemas.retriever import RETRIEVER_ADAPTER, is_neural

WARM_UP, TIMED = 5, 20
"""As in the paper (its appendix on latency)."""

_BLOCK_BYTES = 1 << 30


Points: TypeAlias = list[dict[str, float]]
"""`x` → `ms`."""


def measure(
    method: str,
    backbone: str,
    slots: int,
    vectors: int,
    hidden_size: int,
    lengths: list[int],
    sizes: list[int],
    device: str,
) -> dict[str, Points]:
    """Return the points of both lines of a system; the arguments are those of `encoding` and `search`."""
    return {
        "encoding": encoding(method, backbone, slots, lengths, device),
        "search": search(slots, vectors, hidden_size, sizes, device),
    }


def encoding(method: str, backbone: str, slots: int, lengths: list[int], device: str) -> Points:
    """Return milliseconds of encoding one query at each length of the input, prompt included.

    Args:
        method: `masked` or `generated`.
        backbone: folder of a checkpoint.
        slots: K_q, or the generated tokens; generation does not stop before.
        lengths: in tokens; a text has at least one, so that the prompt's length bounds them below.
        device: `auto`, `cpu` or `cuda`.
    """
    own = {"budget": f"q{slots}p{slots}"} if method == "masked" else {"max_tokens": slots, "stop": "cap"}
    values = {"method": method, "backbone": {"source": backbone}, "content_words": {"subwords": True}, **own}
    config = RETRIEVER_ADAPTER.validate_python(values)
    assert is_neural(config), "both methods have a backbone"
    encoder = load_encoder(config, device)
    return [_encoded(encoder, length, device) for length in lengths]


def _encoded(encoder: Encoder, length: int, device: str) -> dict[str, float]:
    """Time a text whose input has about `length` tokens, its own ones drawn at random."""
    (short,) = encoder.preparer.prepare_queries(["a"])
    around = len(short.input_ids) - short.n_tokens
    (text,) = encoder.preparer.prepare_queries([" ".join(["a"] * max(1, length - around))])
    spare = max(0, len(text.input_ids) - max(length, around + 1))
    # Words of some tokenizers are several tokens: what is too much goes out in the middle, where the text is.
    middle = len(text.input_ids) // 2
    ids = np.delete(text.input_ids, np.arange(middle - spare // 2, middle - spare // 2 + spare))
    drawn = replace(text, input_ids=ids.astype(np.int32), n_tokens=text.n_tokens - spare)
    milliseconds = _timed(lambda: encoder.encode([drawn]), device)
    return {"x": len(drawn.input_ids), "ms": milliseconds}


def search(slots: int, vectors: int, hidden_size: int, sizes: list[int], device: str) -> Points:
    """Return milliseconds of an exact MaxSim search at each number of passages.

    Args:
        slots: K_q.
        vectors: of a passage.
        hidden_size: H.
        sizes: passages; what does not fit into a gigabyte is the same block searched again.
        device: `auto`, `cpu` or `cuda`.
    """
    place = resolve_device(device)
    dtype = torch.float32 if place.type == "cpu" else torch.float16
    fits = max(1, _BLOCK_BYTES // (vectors * hidden_size * dtype.itemsize))
    block_PNH = torch.randn(min(fits, max(sizes)), vectors, hidden_size, device=place, dtype=dtype)
    query_KH = torch.randn(slots, hidden_size, device=place, dtype=dtype)
    return [{"x": size, "ms": _timed(lambda size=size: _search(block_PNH, query_KH, size), device)} for size in sizes]  # type: ignore[misc]


@torch.inference_mode()
def _search(block_PNH: torch.Tensor, query_KH: torch.Tensor, size: int) -> None:
    left = size
    while left > 0:
        part_PNH = block_PNH[: min(left, len(block_PNH))]
        scores_P = (part_PNH @ query_KH.T).amax(1).mean(1)
        scores_P.topk(min(10, len(scores_P)))
        left -= len(part_PNH)


def _timed(work: Callable[[], object], device: str) -> float:
    """Return the mean of the timed runs in milliseconds; the device has finished before the clock stops."""
    is_cuda = resolve_device(device).type == "cuda"
    for _ in range(WARM_UP):
        work()
    if is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(TIMED):
        work()
    if is_cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / TIMED


if __name__ == "__main__":
    serve_child({"measure": measure})

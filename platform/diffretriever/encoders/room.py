"""How many tokens a GPU has room for at once, from what two passes over made-up texts take of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from diffretriever.encoders.base import TOKENS_PER_BATCH_GPU

if TYPE_CHECKING:
    import torch

    from diffretriever.encoders.base import Encoder
    from diffretriever.encoders.preparer import PreparedText

LEAST_TOKENS = 1024
"""Of a batch, however little memory is free: one that does not fit is halved when it comes."""
SHARE = 0.8
"""Of the free memory is for a batch; the rest is lost in pieces between tensors."""
_SMALL_TOKENS = 1024
_TIMES_LARGER = 4
_WORDS = 400


class Pass(NamedTuple):
    """What a pass over a batch took."""

    tokens: int
    """Rows times the longest row."""
    bytes: int
    """Of memory at the most, beside the model."""


class Memory(Protocol):
    """A device's memory."""

    def free(self) -> int:
        """Return the bytes that nobody uses."""

    def taken_by(self, work: Callable[[], object]) -> int:
        """Do some work; return the most bytes that it took at once, beside what was taken before."""


def chosen_tokens(encoder: Encoder, wanted: int | Literal["auto"]) -> int:
    """Return how many tokens a batch of an encoder may have: as many as are wanted or, on a GPU, have room."""
    if wanted != "auto":
        return wanted
    device = encoder.facts.device
    return encoder.tokens_per_batch if device.type == "cpu" else probed_tokens(encoder, GpuMemory(device))


def probed_tokens(encoder: Encoder, memory: Memory) -> int:
    """Return how many tokens of a batch a device has room for beside the model, by passes over long passages."""
    import torch

    (text,) = encoder.preparer.prepare_passages([""], [_made_up_text(encoder.preparer.vocabulary.tokenizer)])
    rows = max(1, _SMALL_TOKENS // len(text.input_ids))
    try:
        # The first pass also sets up what stays.
        encoder.encode_batch([text])
        small, large = (_pass(encoder, [text] * n, memory) for n in (rows, rows * _TIMES_LARGER))
        return fitting_tokens(small, large, memory.free())
    except torch.OutOfMemoryError:
        return LEAST_TOKENS


def fitting_tokens(small: Pass, large: Pass, free: int) -> int:
    """Return the tokens of the largest batch that takes no more than `SHARE` of `free` bytes, within stated bounds.

    The bytes of a batch lie on the straight line through those of two passes.
    """
    per_token = (large.bytes - small.bytes) / (large.tokens - small.tokens)
    if per_token <= 0:
        return TOKENS_PER_BATCH_GPU
    fixed = small.bytes - small.tokens * per_token
    return max(LEAST_TOKENS, min(TOKENS_PER_BATCH_GPU, int((SHARE * free - fixed) / per_token)))


def _pass(encoder: Encoder, texts: list[PreparedText], memory: Memory) -> Pass:
    return Pass(len(texts) * len(texts[0].input_ids), memory.taken_by(lambda: encoder.encode_batch(texts)))


def _made_up_text(tokenizer: Any) -> str:
    """Return as many words as a long passage has, all different and entries of the vocabulary."""
    tokens = range(0, len(tokenizer), max(1, len(tokenizer) // _WORDS))
    return " ".join(tokenizer.batch_decode([[token] for token in tokens], skip_special_tokens=True))


class GpuMemory:
    """The memory of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        """See `Memory`."""
        import torch

        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def taken_by(self, work: Callable[[], object]) -> int:
        """See `Memory`."""
        import torch

        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device) - before

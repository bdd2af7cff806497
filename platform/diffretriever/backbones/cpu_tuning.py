"""What makes torch faster on a CPU, and smaller: each with the time or the memory that it saves.

- Kernels of oneDNN, torch's library of CPU kernels, are kept for 64 shapes: .6 GB in place of 1.1 after 400 batches.
- Freed memory is kept for the next layer (`keep_freed_memory`): a tenth of a pass.
- Small passes run in one thread (`is_small_pass`): where torch's threads spin beside another process, a query took 5
  to 27 times its CPU time.
- In bfloat16, weights are held in oneDNN's blocked layout (`block_weights`): a third of the time of a single query.
- In bfloat16, attention over long texts is two products and oneDNN's softmax (`attend_by_products`): the softmax takes
  .4 to 1 times as long as torch's. docs/benchmarks.md has the rates (encoding, part d).

Legend: I inputs and O outputs of a linear map; B texts, Q queries, K keys, N heads, D size of a head, T and M rows of
queries and of keys, G heads of keys.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Torch keeps CPU kernels that it has set up for a shape, 1,024 of a kind, and texts have hundreds of shapes: after 400
# batches a process held 1.1 GB in place of .6, for no gain in speed. Read once, at a process's first product.
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")
# Of glibc's malloc.h: bytes free at the heap's end from which on they are handed back to the system
# (M_TRIM_THRESHOLD), and those of an allocation from which on it lies outside of the heap (M_MMAP_THRESHOLD).
_TRIMMED, _MAPPED = (-1, 256 << 20), (-3, 32 << 20)
# Tokens times the square of the hidden size: the multiplications in one square product of a layer.
_SMALL_PASS = 256 * 384**2
_OPERATORS = ("_reorder_linear_weight", "_linear_pointwise")
_PRODUCT_KEYS = 64
"""Tokens of the longest text from which on two matrix products are faster than torch's kernel (measured on a CPU)."""


@cache
def computes_bfloat16() -> bool:
    """Whether oneDNN, torch's library of CPU kernels, takes bfloat16 on this processor."""
    found = torch.ops.mkldnn
    is_there = torch.backends.mkldnn.is_available() and hasattr(found, "_is_mkldnn_bf16_supported")
    return is_there and bool(found._is_mkldnn_bf16_supported())  # noqa: SLF001 (no public name)


def keep_freed_memory() -> None:
    """Have this process keep up to 256 MB of what it frees, for what it allocates next; without glibc do nothing.

    Every layer of a pass on a CPU allocates and frees some MB. Handed back to the system in between, they are zeroed
    and mapped again page by page, which took a tenth of the time.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(*_TRIMMED)
        libc.mallopt(*_MAPPED)


def is_small_pass(tokens: int, hidden_size: int) -> bool:
    """Whether a CPU computes a pass as fast in one thread as in several: 256 tokens of MiniLM, 2 of a 7B model."""
    return tokens * hidden_size**2 <= _SMALL_PASS


def block_weights(model: PreTrainedModel) -> None:
    """Put a model's weights in blocks, in place, where that gains: bfloat16 on an x86 processor that multiplies it.

    A plain matrix is put into blocks in every product; here it is done once, by the operators that torch.compile takes
    for it. Results are the same bit for bit. The blocks replace the plain weights, so memory does not grow; gradients
    no longer reach the layers.

    Args:
        model: a backbone's without its head, with its adapter, merged or beside the weights, whose own matrices stay as
            they are.
    """
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not _has_operators():
        return
    plain = [name for name, module in model.named_modules() if _is_plain(module)]
    # One after the other, so that memory never holds all weights twice.
    for name in plain:
        model.set_submodule(name, BlockedLinear(model.get_submodule(name)))


def _has_operators() -> bool:
    has_all = all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
    return has_all and platform.machine() in ("x86_64", "AMD64") and computes_bfloat16()


def _is_plain(module: nn.Module) -> bool:
    # LoRA's are float32.
    return type(module) is nn.Linear and module.weight.dtype == torch.bfloat16


class BlockedLinear(nn.Module):
    """A linear map, bfloat16, whose weights are held in blocks."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # No buffer: blocks cannot be copied or saved as other tensors.
        self.blocks_OI: Any = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)  # noqa: SLF001
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., O] of inputs [..., I], both bfloat16."""
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        outputs: Tensor = product(inputs, self.blocks_OI, self.bias, "none", [], "")
        return outputs


def gains_by_products(query_TND: Tensor, key_MGD: Tensor, longest: int, dropout: float) -> bool:
    """Whether `attend_by_products` is faster than torch's kernel: on a CPU that computes in bfloat16, for long texts.

    Args:
        query_TND: of the texts.
        key_MGD: likewise.
        longest: tokens of the longest text.
        dropout: probability.
    """
    is_plain = (
        longest >= _PRODUCT_KEYS
        and dropout == 0
        and query_TND.shape[1] == key_MGD.shape[1]
        and not torch.is_grad_enabled()
    )
    return is_plain and query_TND.device.type == "cpu" and query_TND.dtype == torch.bfloat16 and computes_bfloat16()


def attend_by_products(
    query_BNQD: Tensor,
    key_BNKD: Tensor,
    value_BNKD: Tensor,
    *,
    attn_mask: Tensor | None,
    scale: float | None,
    **_: Any,
) -> Tensor:
    """Do what `scaled_dot_product_attention` does, text by text, so that a text's scores stay in the cache.

    Args:
        query_BNQD: bfloat16.
        key_BNKD: likewise.
        value_BNKD: likewise.
        attn_mask: bool [Q, K], which keys each query sees; None: all of them.
        scale: of the products; None: 1 / √D.
    """
    scaled_BNQD = query_BNQD * (query_BNQD.shape[3] ** -0.5 if scale is None else scale)
    attended_BNQD = torch.empty_like(query_BNQD)
    for text in range(len(query_BNQD)):
        scores_NQK = torch.bmm(scaled_BNQD[text], key_BNKD[text].mT)
        if attn_mask is not None:
            scores_NQK.masked_fill_(~attn_mask, -torch.inf)
        # From 80 keys on oneDNN's takes .4 to 1 times as long as torch's own, least where they are no multiple of 32.
        weights_NQK = scores_NQK.to_mkldnn().softmax(-1).to_dense()
        torch.bmm(weights_NQK, value_BNKD[text], out=attended_BNQD[text])
    return attended_BNQD

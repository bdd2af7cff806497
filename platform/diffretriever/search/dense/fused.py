"""Fused GPU kernel for MaxSim over 8-bit codes, which reads codes once and writes only each passage's maxima.

A query vector is two rows of int8, `LIMB * high + low`, about 16 bits together. Integer products add up exactly in
32 bits.

Legend: P passages, N vectors of all passages together, M query vectors, H hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffretriever.vectors.maxsim import LIMB

if TYPE_CHECKING:
    from diffretriever.search.dense.resident import DeviceCodes

_ROWS = 128
"""Vectors of passages that a program multiplies at once."""
_COLUMNS = 128
"""Dimensions that it multiplies at once."""
_WARPS = 8
_VECTORS = (8, 64)
"""Query vectors of a program: the least that the GPU's int8 products take, and the most that its registers hold."""


def largest_products(codes: DeviceCodes, limbs_MLH: Tensor) -> Tensor:
    """Return each query vector's largest product with each passage, float32 [P, M], to be scaled by the query's step.

    `limbs_MLH` is int8 [M, 2, H], high and low, on the GPU of the codes. Passages without vectors get -inf.
    """
    n_vectors, _, hidden_size = limbs_MLH.shape
    longest = max(1, codes.longest)
    rows = min(triton.next_power_of_2(longest), _ROWS)
    width = _VECTORS[0] if n_vectors <= _VECTORS[0] else _VECTORS[1]
    best_PM = torch.empty(len(codes), n_vectors, device=codes.scales_N.device)
    grid = (triton.cdiv(n_vectors, width) * triton.cdiv(len(codes), _ROWS // rows),)
    _kernel[grid](
        codes.codes_NH, codes.scales_N, codes.offsets_E, limbs_MLH, best_PM, len(codes), n_vectors, longest,
        H=hidden_size, PASSAGES=_ROWS // rows, ROWS=rows, VECTORS=width, COLUMNS=_COLUMNS, BASE=LIMB, num_warps=_WARPS,
    )  # fmt: skip
    return best_PM


@triton.jit
def _kernel(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917 (Triton reads annotations, and knows few)
    codes, scales, offsets, limbs, best, n_passages, n_vectors, longest,
    H: tl.constexpr, PASSAGES: tl.constexpr, ROWS: tl.constexpr, VECTORS: tl.constexpr, COLUMNS: tl.constexpr,
    BASE: tl.constexpr,
):  # fmt: skip
    """Write the maxima of VECTORS query vectors with PASSAGES passages, ROWS vectors of each at a time."""
    # Programs of the same passages are neighbours: all but the first find the codes in the GPU's cache.
    blocks = tl.cdiv(n_vectors, VECTORS)
    first_vector = tl.program_id(0) % blocks * VECTORS
    passage = tl.program_id(0) // blocks * PASSAGES + tl.arange(0, PASSAGES)
    begin = tl.load(offsets + passage, mask=passage < n_passages, other=0)
    end = tl.load(offsets + passage + 1, mask=passage < n_passages, other=0)
    limb = 2 * first_vector + tl.arange(0, 2 * VECTORS)
    most = tl.full((PASSAGES, VECTORS), float("-inf"), tl.float32)
    for first in range(0, longest, ROWS):
        row_2d = begin[:, None] + first + tl.arange(0, ROWS)[None, :]
        in_passage = tl.reshape(row_2d < end[:, None], (PASSAGES * ROWS,))
        row = tl.reshape(row_2d, (PASSAGES * ROWS,))
        sums = tl.zeros((PASSAGES * ROWS, 2 * VECTORS), tl.int32)
        for start in range(0, H, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            block = tl.load(
                codes + row[:, None] * H + column[None, :], mask=in_passage[:, None] & (column < H)[None, :], other=0
            )
            right = tl.load(
                limbs + limb[None, :] * H + column[:, None],
                mask=(limb < 2 * n_vectors)[None, :] & (column < H)[:, None],
                other=0,
            )
            sums += tl.dot(block, right, out_dtype=tl.int32)
        high, low = tl.split(tl.reshape(sums, (PASSAGES * ROWS, VECTORS, 2)))
        scale = tl.load(scales + row, mask=in_passage, other=0.0)
        product = (BASE * high.to(tl.float32) + low.to(tl.float32)) * scale[:, None]
        product = tl.where(in_passage[:, None], product, float("-inf"))
        most = tl.maximum(most, tl.max(tl.reshape(product, (PASSAGES, ROWS, VECTORS)), axis=1))
    vector = first_vector + tl.arange(0, VECTORS)
    written = (passage < n_passages)[:, None] & (vector < n_vectors)[None, :]
    tl.store(best + passage.to(tl.int64)[:, None] * n_vectors + vector[None, :], most, mask=written)

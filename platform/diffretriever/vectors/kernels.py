"""Compiled loops of dense scoring: exact MaxSim, 8-bit quantisation and its products.

Vectors are stored in fp16 and scored in fp32; exact MaxSim converts them in registers, without rounding. In the loops
over codes, numba promotes int32 to int64 unless every step is cast back, and only 32-bit products compile to fast
multiply-and-add instructions.

Legend: N vectors of all passages, P passages, Q queries, M query vectors, H hidden size, C chosen passages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from diffretriever.core.kernels import kernel

_MOST_NEGATIVE = np.float32(-np.inf)
_ZERO = np.int32(0)
_SHORT = 1024
"""Maximum hidden size for which four query vectors and a row of codes fit the L1 cache."""


@intrinsic
def _widened(_: Any, __: Any) -> Any:
    """Convert fp16, given as uint16 bits, to fp32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


def _single(number: np.float32 | np.uint16) -> np.float32:
    """Convert fp32, or the bits of fp16, to fp32; for compiled code only."""
    raise NotImplementedError


@overload(_single, inline="always", strict=False)
def _single_of(number: Any) -> Callable[[Any], Any]:
    # Numba accepts only functions here, and an intrinsic is not one.
    return (lambda number: number) if number == types.float32 else (lambda number: _widened(number))  # noqa: PLW0108


@functools.cache
def scan_of(hidden_size: int) -> Any:  # noqa: C901  (written out, the loops are a third faster)
    """Return the `scan` kernel compiled for one hidden size, because loops of known length take a third less time.

    It writes the sum of maximum products of each passage to out_C (float32). Arguments: codes_NH (int8), scales_N
    (float32, quantisation steps), begins_C and ends_C (int64, rows of each passage; empty ones score -inf), query_MH
    (int16, small enough that products with a row fit 32 bits) and query_scales_M (float32).
    """

    @kernel()
    def scan(  # noqa: C901
        codes_NH: np.ndarray,
        scales_N: np.ndarray,
        begins_C: np.ndarray,
        ends_C: np.ndarray,
        query_MH: np.ndarray,
        query_scales_M: np.ndarray,
        out_C: np.ndarray,
    ) -> None:
        fours = query_MH.shape[0] // 4 * 4 if hidden_size <= _SHORT else 0
        for c in range(out_C.shape[0]):
            total = np.float32(0) if begins_C[c] < ends_C[c] else _MOST_NEGATIVE
            # Four query vectors at a time widen a row of codes only once.
            for m in range(0, fours, 4):
                best0 = best1 = best2 = best3 = _MOST_NEGATIVE
                for n in range(begins_C[c], ends_C[c]):
                    product0 = product1 = product2 = product3 = _ZERO
                    for h in range(hidden_size):
                        product0 = np.int32(product0 + np.int32(codes_NH[n, h] * query_MH[m, h]))
                    for h in range(hidden_size):
                        product1 = np.int32(product1 + np.int32(codes_NH[n, h] * query_MH[m + 1, h]))
                    for h in range(hidden_size):
                        product2 = np.int32(product2 + np.int32(codes_NH[n, h] * query_MH[m + 2, h]))
                    for h in range(hidden_size):
                        product3 = np.int32(product3 + np.int32(codes_NH[n, h] * query_MH[m + 3, h]))
                    best0 = max(best0, scales_N[n] * np.float32(product0))
                    best1 = max(best1, scales_N[n] * np.float32(product1))
                    best2 = max(best2, scales_N[n] * np.float32(product2))
                    best3 = max(best3, scales_N[n] * np.float32(product3))
                total += best0 * query_scales_M[m] + best1 * query_scales_M[m + 1]
                total += best2 * query_scales_M[m + 2] + best3 * query_scales_M[m + 3]
            for m in range(fours, query_MH.shape[0]):
                best = _MOST_NEGATIVE
                for n in range(begins_C[c], ends_C[c]):
                    product = _ZERO
                    for h in range(hidden_size):
                        product = np.int32(product + np.int32(codes_NH[n, h] * query_MH[m, h]))
                    best = max(best, scales_N[n] * np.float32(product))
                total += best * query_scales_M[m]
            out_C[c] = total

    return scan


@kernel()
def reduce_products(
    products_NM: np.ndarray,
    scales_N: np.ndarray,
    offsets: np.ndarray,
    query_offsets: np.ndarray,
    query_scales_M: np.ndarray,
    out_QP: np.ndarray,
) -> None:
    """Write mean MaxSim from int32 products of codes and float32 quantisation steps; -inf for empty passages."""
    best_M = np.empty(products_NM.shape[1], np.float32)
    for p in range(out_QP.shape[1]):
        best_M[:] = _MOST_NEGATIVE
        for n in range(offsets[p], offsets[p + 1]):
            for m in range(best_M.shape[0]):
                best_M[m] = max(best_M[m], scales_N[n] * np.float32(products_NM[n, m]))
        for q in range(out_QP.shape[0]):
            total = np.float32(0)
            for m in range(query_offsets[q], query_offsets[q + 1]):
                total += best_M[m] * query_scales_M[m]
            out_QP[q, p] = total / np.float32(query_offsets[q + 1] - query_offsets[q])


@kernel(fastmath={"reassoc", "contract", "nsz"})
def exact(
    vectors_NH: np.ndarray, offsets: np.ndarray, chosen_C: np.ndarray, query_MH: np.ndarray, out_C: np.ndarray
) -> None:
    """Write the mean MaxSim of one query with chosen passages, in fp32; -inf for empty passages.

    Unlike matrix products, whose last bits depend on their shape, a score does not depend on the other passages.
    `vectors_NH` are float32, or float16 as uint16 bits; the last bits of a score may depend on that.
    """
    for c in range(chosen_C.shape[0]):
        begin, end = offsets[chosen_C[c]], offsets[chosen_C[c] + 1]
        total = np.float32(0)
        for m in range(query_MH.shape[0]):
            best = _MOST_NEGATIVE
            for n in range(begin, end):
                product = np.float32(0)
                for h in range(query_MH.shape[1]):
                    product += _single(vectors_NH[n, h]) * query_MH[m, h]
                best = max(best, product)
            total += best
        out_C[c] = total / np.float32(query_MH.shape[0])


@kernel()
def encode(vectors_NH: np.ndarray, codes_NH: np.ndarray, scales_N: np.ndarray, errors_N: np.ndarray) -> None:
    """Quantise each vector to -127..127; write int8 codes, steps, and L2 errors rounded up."""
    for n in range(vectors_NH.shape[0]):
        largest = np.float32(0)
        for h in range(vectors_NH.shape[1]):
            largest = max(largest, abs(vectors_NH[n, h]))
        scale = largest / np.float32(127)
        inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
        squared = 0.0
        for h in range(vectors_NH.shape[1]):
            code = np.int8(round(vectors_NH[n, h] * inverse))
            codes_NH[n, h] = code
            gap = np.float64(vectors_NH[n, h]) - np.float64(scale) * np.float64(code)
            squared += gap * gap
        scales_N[n] = scale
        errors_N[n] = np.float32(np.sqrt(squared) * 1.000001)

"""Approximate MaxSim over 8-bit codes, with a bound on its error that holds for every passage.

A score computed from codes differs from the fp32 score by at most what rounding took from the passage's vectors and
from the query's, by the Cauchy-Schwarz inequality. So the passages that can be among the best k are known, and only
those need their stored vectors.

Legend: Q queries, M query vectors, P passages, N vectors of all passages, H hidden size, C chosen passages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from diffretriever.scoring.kernels import reduce_products, scan, scan_chosen
from diffretriever.scoring.maxsim import FP32_ROUNDING, maxsim

_INT8, _INT16, _INT32 = 2**7 - 1, 2**15 - 1, 2**31 - 1
_PRODUCT_VECTORS = 8
"""With more query vectors than this, one integer matrix product is faster than a pass of the kernel for each query."""
_PRODUCT_ROWS = 8192
"""Vectors of passages in one integer matrix product."""
_BLOCK_CELLS = 1 << 25
"""Numbers of passages' vectors decoded at once: 128 MiB of fp32."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Vectors as 8-bit codes.

    Attributes:
        codes_NH: int8 [N, H].
        scales_N: float32 [N], value of a step of each vector's codes.
        offsets: int64 [P + 1]; passage i owns vectors offsets[i] to offsets[i + 1].
    """

    codes_NH: np.ndarray
    scales_N: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1


class CodedQueries:
    """Queries made ready to be scored against codes."""

    def __init__(self, vectors_MH: np.ndarray, offsets: np.ndarray, bits: Literal[8, 16] = 16) -> None:
        """Round float16 or float32 [M, H]; query i owns rows offsets[i] to offsets[i + 1], at least one.

        Codes of 16 bits are for the kernels, and bounds are tighter; those of 8 bits are for matrix products.
        """
        self.vectors_MH = np.asarray(vectors_MH, np.float32)
        self.offsets = offsets
        self.bits = bits
        largest_M = np.abs(self.vectors_MH).max(axis=1, initial=0)
        norms_M = np.linalg.norm(self.vectors_MH, axis=1)
        # No product with a row of codes may leave 32 bits, however the two lie to each other.
        longest = _INT32 / (_INT8 * np.sqrt(self.vectors_MH.shape[1])) - np.sqrt(self.vectors_MH.shape[1])
        limit = _INT16 if bits == 16 else _INT8
        steps_M = np.minimum(limit / np.maximum(largest_M, 1e-30), longest / np.maximum(norms_M, 1e-30))
        self.codes_MH = np.rint(self.vectors_MH * steps_M[:, None]).astype(np.int16)
        self.scales_M = (1 / steps_M).astype(np.float32)
        errors_M = np.linalg.norm(self.vectors_MH - self.codes_MH * self.scales_M[:, None], axis=1)
        counts_Q = np.diff(offsets)
        self._norms_Q = np.add.reduceat(norms_M, offsets[:-1]) / counts_Q
        self._errors_Q = np.add.reduceat(errors_M, offsets[:-1]) / counts_Q + FP32_ROUNDING * self._norms_Q

    @classmethod
    def for_scan(cls, vectors_MH: np.ndarray, offsets: np.ndarray, device: torch.device) -> CodedQueries:
        """Round queries to what is fastest for `scores` of many passages on this device."""
        return cls(vectors_MH, offsets, 8 if device.type == "cpu" and len(vectors_MH) > _PRODUCT_VECTORS else 16)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def scores(self, passages: Codes, device: torch.device) -> np.ndarray:
        """Return float32 [Q, P]: approximate mean MaxSim of every query with every passage; -inf without vectors."""
        if device.type != "cpu":
            return self.decoded_scores(passages, device)
        return self.kernel_scores(passages) if self.bits == 16 else self.product_scores(passages)

    def kernel_scores(self, passages: Codes) -> np.ndarray:
        """Return float32 [Q, P], as `scores`, by a pass of the kernel for each query."""
        scores_QP = np.empty((len(self), len(passages)), np.float32)
        for query in range(len(self)):
            own = slice(self.offsets[query], self.offsets[query + 1])
            codes, scales = self.codes_MH[own], self.scales_M[own]
            scan(passages.codes_NH, passages.scales_N, passages.offsets, codes, scales, scores_QP[query])
        return scores_QP / np.diff(self.offsets).astype(np.float32)[:, None]

    def product_scores(self, passages: Codes) -> np.ndarray:
        """Return float32 [Q, P], as `scores`, by integer matrix products of all queries with blocks of passages."""
        assert self.bits == 8, "products are of 8 bits by 8"
        # A transposed array can have strides that torch 2.13 misreads in this product.
        query_HM = torch.empty(self.codes_MH.shape[::-1], dtype=torch.int8).copy_(torch.from_numpy(self.codes_MH).T)
        scores_QP = np.empty((len(self), len(passages)), np.float32)
        for rows, offsets, block_QP in _blocks(passages, _PRODUCT_ROWS, scores_QP):
            # Memory-mapped arrays cannot be written to, which torch will not have: hence the copy.
            codes_NH = torch.from_numpy(np.array(passages.codes_NH[rows]))
            products_NM = torch._int_mm(codes_NH, query_HM).numpy()  # noqa: SLF001  (torch has no public name for it)
            reduce_products(products_NM, passages.scales_N[rows], offsets, self.offsets, self.scales_M, block_QP)
        return scores_QP

    def decoded_scores(self, passages: Codes, device: torch.device) -> np.ndarray:
        """Return float32 [Q, P], as `scores`, by fp32 products of all queries with decoded blocks of passages."""
        query_MH = torch.from_numpy(self.vectors_MH).to(device)
        scores_QP = np.empty((len(self), len(passages)), np.float32)
        for rows, offsets, block_QP in _blocks(passages, _BLOCK_CELLS // passages.codes_NH.shape[1], scores_QP):
            # As bytes to the device, and wider only there.
            decoded_NH = torch.from_numpy(np.array(passages.codes_NH[rows])).to(device).float()
            decoded_NH *= torch.from_numpy(np.array(passages.scales_N[rows])).to(device)[:, None]
            block_QP[:] = maxsim(query_MH, self.offsets, decoded_NH, offsets).cpu().numpy()
        return scores_QP

    def chosen_scores(self, query: int, passages: Codes, chosen_C: np.ndarray) -> np.ndarray:
        """Return float32 [C], as `scores`, of one query with the passages numbered `chosen_C` (int64)."""
        own = slice(self.offsets[query], self.offsets[query + 1])
        scores_C = np.empty(len(chosen_C), np.float32)
        codes, scales = self.codes_MH[own], self.scales_M[own]
        scan_chosen(passages.codes_NH, passages.scales_N, passages.offsets, chosen_C, codes, scales, scores_C)
        return scores_C / np.float32(own.stop - own.start)

    def slack(self, query: int, errors_P: np.ndarray, norms_P: np.ndarray) -> np.ndarray:
        """Return float [P]: the most by which a score of this query can differ from the fp32 score."""
        return self._norms_Q[query] * errors_P + self._errors_Q[query] * (norms_P + errors_P)


def _blocks(passages: Codes, vectors: int, scores_QP: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield blocks of about so many vectors: their rows, the passages' offsets from the first, their part of scores."""
    per_passage = len(passages.scales_N) / max(1, len(passages))
    step = max(1, int(vectors / max(1.0, per_passage)))
    for start in range(0, len(passages), step):
        offsets = passages.offsets[start : start + step + 1]
        yield slice(offsets[0], offsets[-1]), offsets - offsets[0], scores_QP[:, start : start + step]

"""Mean MaxSim of many queries with 8-bit codes that lie in a device's memory, by products of halves, with a bound.

GPUs multiply halves many times faster than singles and add the products up as singles. Codes are halves as they are,
and their scales multiply the products. Query vectors are divided by a power of two, so that they are no longer than 1,
and rounded to halves. What is lost is bounded by the Cauchy-Schwarz inequality, as of the codes themselves
(`scoring.maxsim`), so that exact scores of what can be among the best still give what a full scan gives.

Legend: Q queries, P passages, M vectors of all queries together, N vectors of all passages together, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from diffretriever.representations import runs
from diffretriever.scoring.maxsim import FP32_ROUNDING, Codes, best_of_each, sum_per_query

ADDITION = 2.0**-23
"""Most by which an addition of products of halves is wrong, relative to the lengths of both vectors, even where what is
added is cut off, not rounded, at 24 bits."""
_CELLS = 1 << 26
"""Codes as halves, and products, held at once: 128 MiB of halves."""


@dataclass(frozen=True)
class DeviceCodes:
    """Codes of passages, copied to a device.

    Attributes:
        codes_NH: int8.
        scales_N: float32, value of a step of each vector's codes.
        offsets: int64 [P + 1] on the host; passage i owns vectors offsets[i] to offsets[i + 1].
        errors_P: float32, the most that rounding to codes took from a vector of the passage, in length.
        norms_P: float32, length of its longest vector.
    """

    codes_NH: Tensor
    scales_N: Tensor
    offsets: np.ndarray
    errors_P: Tensor
    norms_P: Tensor

    @classmethod
    def copy(cls, codes: Codes, errors_P: np.ndarray, norms_P: np.ndarray, device: torch.device) -> Self:
        """Copy codes of P passages, and their errors and norms as in `DeviceCodes`, to a device."""
        return cls(
            _copied(codes.codes_NH, device),
            _copied(codes.scales_N, device),
            codes.offsets,
            _copied(errors_P, device),
            _copied(norms_P, device),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1


class HalfQueries:
    """Queries made ready, on a device, to be scored against codes that lie there."""

    def __init__(self, vectors_MH: np.ndarray, offsets: np.ndarray, device: torch.device) -> None:
        """Round queries (float16 or float32 [M, H], int64 offsets [Q + 1], each with a vector) and copy them."""
        vectors_MH = np.asarray(vectors_MH, np.float32)
        counts_Q = np.diff(offsets)
        norms_M = np.linalg.norm(vectors_MH, axis=1)
        # A power of two above the length: to divide by it rounds nothing.
        scales_M = np.ldexp(np.float32(1), np.frexp(norms_M)[1])
        halves_MH = (vectors_MH / scales_M[:, None]).astype(np.float16)
        lost_M = np.linalg.norm(vectors_MH - halves_MH.astype(np.float32) * scales_M[:, None], axis=1)
        norms_Q = np.add.reduceat(norms_M, offsets[:-1]) / counts_Q
        relative = vectors_MH.shape[1] * ADDITION + FP32_ROUNDING
        errors_Q = np.add.reduceat(lost_M, offsets[:-1]) / counts_Q + relative * norms_Q
        self._counts = torch.from_numpy(counts_Q)
        self._counts_Q = self._counts.to(device)
        self._halves_HM = _copied(halves_MH, device).T.contiguous()
        self._scales_M = _copied(scales_M, device)
        self._norms_Q1 = _copied(norms_Q.astype(np.float32), device)[:, None]
        self._errors_Q1 = _copied(errors_Q.astype(np.float32), device)[:, None]

    def __len__(self) -> int:
        return len(self._counts)

    def scores(self, codes: DeviceCodes) -> Tensor:
        """Return float32 [Q, P]: approximate mean MaxSim; -inf for passages without vectors."""
        scores_QP = torch.empty(len(self), len(codes), device=codes.scales_N.device)
        for passages in runs(codes.offsets, _CELLS // sum(self._halves_HM.shape)):
            offsets = codes.offsets[passages.start : passages.stop + 1]
            rows = slice(int(offsets[0]), int(offsets[-1]))
            products_NM = _products(codes.codes_NH[rows], self._halves_HM).mul_(codes.scales_N[rows, None])
            best_PM = best_of_each(products_NM, torch.from_numpy(np.diff(offsets))) * self._scales_M
            scores_QP[:, passages] = (sum_per_query(best_PM, self._counts) / self._counts_Q).T
        return scores_QP

    def slack(self, codes: DeviceCodes) -> Tensor:
        """Return float32 [Q, P]: the most by which a score can differ from the fp32 score."""
        return self._norms_Q1 * codes.errors_P + self._errors_Q1 * (codes.norms_P + codes.errors_P)


def _products(codes_NH: Tensor, right_HM: Tensor) -> Tensor:
    """Return float32 [N, M]: products of codes, int8, with halves, added up as singles."""
    if codes_NH.device.type == "cuda":
        return torch.mm(codes_NH.half(), right_HM, out_dtype=torch.float32)
    return codes_NH.float() @ right_HM.float()


def _copied(values: np.ndarray, device: torch.device) -> Tensor:
    # Memory-mapped arrays cannot be written to, which torch will not have: hence the copy.
    return torch.from_numpy(np.array(values)).to(device)

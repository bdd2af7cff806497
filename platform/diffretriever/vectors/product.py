"""Product quantisation of slot vectors: a rotation, then a codebook of 256 codewords per byte.

It differs from plain product quantisation to preserve rankings rather than distances:

- Vectors are rotated onto their principal axes, which are assigned to bytes so that all bytes encode similar variance.
- Axes are weighted by their standard deviation to the power of 2/3, between original and whitened vectors. Otherwise
  the few strong axes would get nearly all bits, although weak axes distinguish passages.
- Each axis is rescaled so that encoded vectors keep their inner products with the originals. Codewords are means, which
  shrink vectors, most of all on weak axes.

Legend: M vectors, N vectors of all passages, S vectors of the sample, H hidden size = G bytes x W dimensions of a byte,
V = 256 values of a byte, Q queries, P passages, L query vectors scored together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Self

import numpy as np
import safetensors.numpy

from diffretriever.schemas.codec import Bits, CodecConfig
from diffretriever.vectors.codewords import (
    best_of_passages,
    byte_codewords,
    look_up,
    nearest_bytes,
    product_tables,
    rotate,
    table_sums,
)
from diffretriever.vectors.representations import runs

_BLOCK = 8192
"""Vectors per step; intermediate results fit a cache."""
_SHARED_QUERIES = 64
"""Query vectors scored in one pass over the encoded vectors."""
_SHORTEST = np.float32(1e-12)
"""Shorter vectors are not normalised."""
_EVENED = 1 / 3
"""Degree of whitening: 0 keeps the deviations, 1 equalises them."""
_LARGEST_STRETCH = 8.0
_LEAST_VARIANCE = 1e-6
"""Minimum variance of an axis relative to the largest; less is rounding."""
_ROUNDING = 1e-12
"""Variance that rounding causes between equal unit vectors."""


class Codec:
    """A trained codec. A decoded vector does not depend on the other vectors of a call.

    Arrays: rotation [H, H], centre [H], scales [H], stretches [H] and codewords [G, 256, W].
    """

    def __init__(self, bits: Bits, arrays: dict[str, np.ndarray]) -> None:
        self.config = CodecConfig(bits)
        # safetensors writes raw memory, ignoring strides.
        self.arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        codewords_GVW = arrays["codewords"]
        parts = (len(codewords_GVW), 1, codewords_GVW.shape[2])
        factors_G1W = (arrays["stretches"] / arrays["scales"]).reshape(parts)
        # Codewords for decoding: unscaled, stretched and uncentred.
        self._decoded_GVW = codewords_GVW * factors_G1W + arrays["centre"].reshape(parts)
        self._back_HH = np.ascontiguousarray(arrays["rotation"].T)
        self._squared_GV1 = (self._decoded_GVW**2).sum(axis=2, keepdims=True)

    @classmethod
    def train(cls, bits: Bits, sample_MH: np.ndarray, seed: int = 0) -> Self:
        """Train a codec on at least one L2-normalised vector, float16 or float32 [M, H]; deterministic.

        Raises:
            ValueError: the hidden size is not a multiple of 8.
        """
        if sample_MH.shape[1] % 8:
            raise ValueError(
                f"codecs fill whole bytes: the hidden size must be a multiple of 8, and it is {sample_MH.shape[1]}"
            )
        sample_SH = np.ascontiguousarray(sample_MH, np.float32)
        width = 8 // bits
        variances_H, axes_HH = _principal_axes(sample_SH)
        dealt_H = _deal_out(variances_H ** (1 - _EVENED), width)
        rotation_HH = np.ascontiguousarray(axes_HH[:, dealt_H], np.float32)
        scales_H = (variances_H[dealt_H] ** (-_EVENED / 2)).astype(np.float32)
        points_SH = _rotated(sample_SH, rotation_HH)
        centre_H = points_SH.mean(axis=0, dtype=np.float64).astype(np.float32)
        points_SH = (points_SH - centre_H) * scales_H
        codewords_GVW = byte_codewords(points_SH, width, seed)
        coded_SH = look_up(nearest_bytes(points_SH, codewords_GVW), codewords_GVW)
        arrays = {
            "rotation": rotation_HH,
            "centre": centre_H,
            "scales": scales_H,
            "stretches": _stretches(points_SH, coded_SH),
            "codewords": codewords_GVW,
        }
        return cls(bits, arrays)

    @property
    def hidden_size(self) -> int:
        """H."""
        return len(self.arrays["rotation"])

    @property
    def bytes_per_vector(self) -> int:
        """G."""
        return self.config.bytes_per_vector(self.hidden_size)

    def encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        """Encode finite L2-normalised vectors (float16 or float32 [M, H]) as uint8 [M, G]."""
        packed_MG = np.empty((len(vectors_MH), self.bytes_per_vector), np.uint8)
        for block in _blocks(len(vectors_MH), _BLOCK):
            rotated_MH = _rotated(vectors_MH[block], self.arrays["rotation"])
            points_MH = (rotated_MH - self.arrays["centre"]) * self.arrays["scales"]
            packed_MG[block] = nearest_bytes(points_MH, self.arrays["codewords"])
        return packed_MG

    def decode(self, packed_MG: np.ndarray) -> np.ndarray:
        """Decode to L2-normalised vectors, float32 [M, H]."""
        vectors_MH = np.empty((len(packed_MG), self.hidden_size), np.float32)
        for block in _blocks(len(packed_MG), _BLOCK):
            vectors_MH[block] = _rotated(_unit(look_up(packed_MG[block], self._decoded_GVW)), self._back_HH)
        return vectors_MH

    def maxsim(
        self, query_vectors_MH: np.ndarray, query_offsets: np.ndarray, packed_NG: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Return the mean MaxSim (paper Eq. 2) of every query and passage, float32 [Q, P], without decoding.

        Equals `scoring.maxsim` of the decoded vectors to 1e-5. Each product is a sum of table entries, one per byte.
        Queries without vectors score 0, passages without vectors -inf.
        """
        query_MH = _rotated(query_vectors_MH, self.arrays["rotation"])
        best_PM = np.empty((len(offsets) - 1, len(query_MH)), np.float32)
        for shared in _blocks(len(query_MH), _SHARED_QUERIES):
            products_GVL = product_tables(query_MH[shared], self._decoded_GVW)
            # The last column sums squared norms.
            tables_GVL = np.concatenate([products_GVL, self._squared_GV1], axis=2)
            for run in runs(offsets, _BLOCK):
                run_offsets = offsets[run.start : run.stop + 1]
                sums_NL = table_sums(packed_NG[run_offsets[0] : run_offsets[-1]], tables_GVL)
                scales_N = 1 / np.sqrt(np.maximum(sums_NL[:, -1], _SHORTEST**2))
                best_PL = np.empty((len(run_offsets) - 1, sums_NL.shape[1] - 1), np.float32)
                best_of_passages(sums_NL[:, :-1], scales_N, run_offsets - run_offsets[0], best_PL)
                best_PM[run, shared] = best_PL
        scores_QP = _mean_per_query(best_PM, query_offsets)
        scores_QP[:, np.diff(offsets) == 0] = -np.inf
        return scores_QP

    def to_bytes(self) -> bytes:
        """Serialise the codec as safetensors, with its name in the metadata."""
        return bytes(safetensors.numpy.save(self.arrays, {"codec": str(self.config)}))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Load a codec serialised by `to_bytes`; raise ValueError for other data."""
        length = int.from_bytes(data[:8], "little")
        try:
            config = CodecConfig.parse(json.loads(data[8 : 8 + length])["__metadata__"]["codec"])
            arrays = safetensors.numpy.load(data)
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
            raise ValueError("this is not a codec: restore the original file") from None
        return cls(config.bits, {name: np.array(array) for name, array in arrays.items()})

    @cached_property
    def digest(self) -> str:
        """Hash of the codec, 32 hex digits; codecs with equal digests decode identically."""
        return hashlib.blake2b(self.to_bytes(), digest_size=16).hexdigest()


def _unit(vectors_MH: np.ndarray) -> np.ndarray:
    lengths_M1 = np.linalg.norm(vectors_MH, axis=1, keepdims=True)
    unit_MH: np.ndarray = vectors_MH / np.maximum(lengths_M1, _SHORTEST)
    return unit_MH


def _blocks(count: int, size: int) -> Iterator[slice]:
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))


def _mean_per_query(best_PM: np.ndarray, query_offsets: np.ndarray) -> np.ndarray:
    counts_Q = np.diff(query_offsets)
    filled = np.flatnonzero(counts_Q)
    scores_QP = np.zeros((len(counts_Q), len(best_PM)), np.float32)
    if len(filled):
        sums_PQ = np.add.reduceat(best_PM, query_offsets[filled], axis=1)
        scores_QP[filled] = (sums_PQ / counts_Q[filled].astype(np.float32)).T
    return scores_QP


def _principal_axes(sample_SH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return descending variances, float64 [H], and principal axes as columns."""
    mean_H = sample_SH.mean(axis=0, dtype=np.float64)
    centred_SH = sample_SH - mean_H.astype(np.float32)
    covariance_HH = (centred_SH.T @ centred_SH).astype(np.float64) / len(sample_SH)
    variances_H, axes_HH = np.linalg.eigh(covariance_HH)
    variances_H = variances_H[::-1]
    least = max(_LEAST_VARIANCE * variances_H[0], _ROUNDING)
    return np.maximum(variances_H, least), np.ascontiguousarray(axes_HH[:, ::-1])


def _deal_out(weights_H: np.ndarray, width: int) -> np.ndarray:
    """Assign axes of descending weight to bytes greedily, so that the products of weights are balanced.

    Equal products minimise the loss of codebooks of equal size. Returns the axes byte by byte, W each.
    """
    n_bytes = len(weights_H) // width
    axes_GW = np.empty((n_bytes, width), np.int64)
    taken_G, loads_G = np.zeros(n_bytes, np.int64), np.zeros(n_bytes)
    # Relative to the smallest weight, so that loads never decrease.
    for axis, load in enumerate(np.log(weights_H / weights_H[-1])):
        byte = int(np.argmin(np.where(taken_G < width, loads_G, np.inf)))
        axes_GW[byte, taken_G[byte]] = axis
        taken_G[byte] += 1
        loads_G[byte] += load
    return axes_GW.reshape(-1)


def _rotated(vectors_MH: np.ndarray, rotation_HH: np.ndarray) -> np.ndarray:
    """Rotate with a fixed order of summation; a BLAS product's bits depend on the number of rows."""
    rotated_MH = np.empty((len(vectors_MH), rotation_HH.shape[1]), np.float32)
    rotate(np.ascontiguousarray(vectors_MH, np.float32), rotation_HH, rotated_MH)
    return rotated_MH


def _stretches(original_SH: np.ndarray, coded_SH: np.ndarray) -> np.ndarray:
    """Return per axis <original, original> / <original, coded>, float32 [H]."""
    squares_H = (original_SH.astype(np.float64) ** 2).sum(axis=0)
    products_H = (original_SH.astype(np.float64) * coded_SH).sum(axis=0)
    bounded_H = np.maximum(products_H, squares_H / _LARGEST_STRETCH)
    stretches_H = np.divide(squares_H, bounded_H, out=np.ones_like(squares_H), where=bounded_H > 0)
    return stretches_H.astype(np.float32)

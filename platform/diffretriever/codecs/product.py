"""The product codec: a rotation, then a codebook of 256 codewords for each byte; no centroids.

What it does otherwise than plain product quantisation serves the ranking rather than the distance to the original:

- Vectors are rotated onto their principal axes, and these are dealt out so that all bytes have about as much to say.
- Axes count by their deviation to the power of two thirds: between the original vectors, whose few strong axes would
  get nearly all bits, and whitened ones. What tells passages apart lies largely along weak axes.
- Every axis is stretched until a coded vector agrees with its original in product as much as that does with itself. A
  mean of vectors is shorter than they are, and the more so the coarser it is: without stretching, the weak axes would
  count for too little in every score.

Legend: M vectors, N vectors of all passages, S vectors of the sample, H hidden size = G bytes x W dimensions of a byte
(a packed vector is these G bytes, so MW and NW stand for [M, G] and [N, G] in what `Codec` hands over), V = 256 values
of a byte, L query vectors.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from diffretriever.codecs.base import Codec, Products, unit
from diffretriever.codecs.codewords import byte_codewords, look_up, nearest_bytes, product_tables, table_sums
from diffretriever.codecs.kernels import rotate
from diffretriever.schemas.codec import Bits

_EVENED = 1 / 3
"""How far axes are evened out: 0 leaves the deviations as they are, 1 makes all of them equal."""
_LARGEST_STRETCH = 8.0
_LEAST_VARIANCE = 1e-6
"""Relative to the largest: axes with less vary by rounding alone."""
_ROUNDING = 1e-12
"""Variance that unit vectors have by rounding alone, where all of them are equal."""


class ProductCodec(Codec):
    """Arrays: rotation [H, H], centre [H] and scales [H] into the space of codewords [G, 256, W], stretches [H]."""

    family = "product"

    @classmethod
    def train(cls, bits: Bits, sample_MH: np.ndarray, n_vectors: int, seed: int) -> Self:
        """Learn rotation and codewords; the number of vectors to come does not matter.

        Args:
            bits: of a dimension.
            sample_MH: float32 [M, H], unit vectors.
            n_vectors: how many will be coded.
            seed: of random beginnings.
        """
        width = 8 // bits
        variances_H, axes_HH = principal_axes(sample_MH)
        dealt_H = deal_out(variances_H ** (1 - _EVENED), width)
        rotation_HH = np.ascontiguousarray(axes_HH[:, dealt_H], np.float32)
        scales_H = (variances_H[dealt_H] ** (-_EVENED / 2)).astype(np.float32)
        points_SH = _rotated(sample_MH, rotation_HH)
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

    def __init__(self, bits: Bits, arrays: dict[str, np.ndarray]) -> None:
        super().__init__(bits, arrays)
        codewords_GVW = arrays["codewords"]
        parts = (len(codewords_GVW), 1, codewords_GVW.shape[2])
        factors_G1W = (arrays["stretches"] / arrays["scales"]).reshape(parts)
        # What decoding looks up: stretched, and back around the centre.
        self._decoded_GVW = codewords_GVW * factors_G1W + arrays["centre"].reshape(parts)
        self._back_HH = np.ascontiguousarray(arrays["rotation"].T)
        self._squared_GV1 = (self._decoded_GVW**2).sum(axis=2, keepdims=True)

    @classmethod
    def width(cls, bits: Bits, hidden_size: int) -> int:
        """Return H x bits / 8, rounded up."""
        return -(-hidden_size * bits // 8)

    @property
    def hidden_size(self) -> int:
        """H."""
        return len(self.arrays["rotation"])

    def project(self, query_vectors_MH: np.ndarray) -> np.ndarray:
        """Return float32 [M, H]: the vectors rotated."""
        return _rotated(query_vectors_MH, self.arrays["rotation"])

    def reconstruct(self, packed_MW: np.ndarray) -> np.ndarray:
        """Return float32 [M, H]: looked up and made as long as 1, but not rotated back."""
        return unit(look_up(packed_MW, self._decoded_GVW))

    def _encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        points_MH = (self.project(vectors_MH) - self.arrays["centre"]) * self.arrays["scales"]
        return nearest_bytes(points_MH, self.arrays["codewords"])

    def _leave(self, reconstructed_MH: np.ndarray) -> np.ndarray:
        return _rotated(reconstructed_MH, self._back_HH)

    def _products(self, query_LH: np.ndarray) -> Products:
        products_GVL = product_tables(query_LH, self._decoded_GVW, self.bytes_per_vector)
        # One more column sums up the squared lengths.
        tables_GVL = np.concatenate([products_GVL, self._squared_GV1], axis=2)

        def products(packed_NW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            sums_NL = table_sums(packed_NW, tables_GVL)
            return sums_NL[:, :-1], sums_NL[:, -1]

        return products


def principal_axes(sample_SH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances of the sample along its principal axes, descending, float64 [H], and the axes as columns.

    Variances of nothing but rounding are raised to a millionth of the largest.
    """
    mean_H = sample_SH.mean(axis=0, dtype=np.float64)
    centred_SH = sample_SH - mean_H.astype(np.float32)
    covariance_HH = (centred_SH.T @ centred_SH).astype(np.float64) / len(sample_SH)
    variances_H, axes_HH = np.linalg.eigh(covariance_HH)
    variances_H = variances_H[::-1]
    least = max(_LEAST_VARIANCE * variances_H[0], _ROUNDING)
    return np.maximum(variances_H, least), np.ascontiguousarray(axes_HH[:, ::-1])


def deal_out(weights_H: np.ndarray, width: int) -> np.ndarray:
    """Return the axes in the order of bytes, int64 [H]: the first W go to the first byte, and so on.

    From the weightiest down, each axis goes to the byte that has the smallest product of weights so far and a place
    left. So all bytes come to about the same product, and codebooks of one size lose least that way.

    Args:
        weights_H: positive, descending.
        width: W, places of a byte, a divisor of H.
    """
    n_bytes = len(weights_H) // width
    places_GW = np.empty((n_bytes, width), np.int64)
    taken_G, loads_G = np.zeros(n_bytes, np.int64), np.zeros(n_bytes)
    # Relative to the smallest weight, so that a further axis never takes from a load.
    for axis, load in enumerate(np.log(weights_H / weights_H[-1])):
        byte = int(np.argmin(np.where(taken_G < width, loads_G, np.inf)))
        places_GW[byte, taken_G[byte]] = axis
        taken_G[byte] += 1
        loads_G[byte] += load
    return places_GW.reshape(-1)


def _rotated(vectors_MH: np.ndarray, rotation_HH: np.ndarray) -> np.ndarray:
    """Rotate by a loop of fixed order: the bits of a library's product depend on how many rows there are."""
    rotated_MH = np.empty((len(vectors_MH), rotation_HH.shape[1]), np.float32)
    rotate(np.ascontiguousarray(vectors_MH, np.float32), rotation_HH, rotated_MH)
    return rotated_MH


def _stretches(original_SH: np.ndarray, coded_SH: np.ndarray) -> np.ndarray:
    """Return float32 [H]: per axis, the product of the originals with themselves over that with themselves packed."""
    own_H = (original_SH.astype(np.float64) ** 2).sum(axis=0)
    with_coded_H = (original_SH.astype(np.float64) * coded_SH).sum(axis=0)
    bounded_H = np.maximum(with_coded_H, own_H / _LARGEST_STRETCH)
    stretches_H = np.divide(own_H, bounded_H, out=np.ones_like(own_H), where=bounded_H > 0)
    return stretches_H.astype(np.float32)

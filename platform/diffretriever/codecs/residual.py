"""ColBERTv2's codec as the paper uses it: the nearest centroid, and what is left in 1, 2 or 4 bits a dimension.

The number of the centroid is the first four bytes of a packed vector, lowest byte first; then come the dimensions in
order, from the lowest bits of a byte up: numpy and torch read them with shifts and masks. The levels of the residual
are quantiles of the residuals of vectors that the centroids were not trained on, the same for all dimensions.

Legend: M vectors, N vectors of all passages, S vectors of the sample, C centroids, H hidden size = G bytes of a
residual x W dimensions of a byte (in MW and NW, the bytes of a packed vector), V = 256 values of a byte, L query
vectors.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from diffretriever.codecs.base import Codec, Products, unit
from diffretriever.codecs.codewords import (
    BYTE_VALUES,
    look_up,
    nearest_centroids,
    product_tables,
    spherical_centroids,
    table_sums,
)
from diffretriever.codecs.kernels import squared_lengths
from diffretriever.schemas.codec import Bits

ID_BYTES = 4
"""Of a packed vector: the number of its centroid."""
_HELD_OUT = 0.05
"""Share of the sample that levels are learned on."""
_MOST_HELD_OUT = 10_000
_LEAST_PER_CENTROID = 4
"""Sampled vectors."""


class ResidualCodec(Codec):
    """Arrays: centroids [C, H], and per residual its cuts [2^bits - 1] between the levels [2^bits], ascending."""

    family = "residual"

    @classmethod
    def train(cls, bits: Bits, sample_MH: np.ndarray, n_vectors: int, seed: int) -> Self:
        """Learn centroids on most of the sample, and the levels of residuals on the rest.

        Args:
            bits: of a dimension.
            sample_MH: float32 [M, H], unit vectors.
            n_vectors: how many will be coded.
            seed: of random beginnings.
        """
        shuffled_MH = sample_MH[np.random.default_rng(seed).permutation(len(sample_MH))]
        held_out = min(max(1, int(len(sample_MH) * _HELD_OUT)), _MOST_HELD_OUT)
        rest_SH = shuffled_MH[held_out:] if len(sample_MH) > held_out else shuffled_MH
        centroids_CH = spherical_centroids(rest_SH, centroid_count(n_vectors, len(rest_SH)), seed)
        unseen_SH = shuffled_MH[:held_out]
        residuals_SH = unseen_SH - centroids_CH[nearest_centroids(unseen_SH, centroids_CH)]
        n_levels = 1 << bits
        cuts = np.quantile(residuals_SH, np.arange(1, n_levels) / n_levels).astype(np.float32)
        levels = np.quantile(residuals_SH, (np.arange(n_levels) + 0.5) / n_levels).astype(np.float32)
        return cls(bits, {"centroids": centroids_CH, "cuts": cuts, "levels": levels})

    def __init__(self, bits: Bits, arrays: dict[str, np.ndarray]) -> None:
        super().__init__(bits, arrays)
        shifts_W = np.arange(8 // bits) * bits
        numbers_VW = (np.arange(BYTE_VALUES)[:, None] >> shifts_W) & ((1 << bits) - 1)
        self._shifts_W = shifts_W.astype(np.uint8)
        self._levels_VW = arrays["levels"][numbers_VW]

    @classmethod
    def width(cls, bits: Bits, hidden_size: int) -> int:
        """Return 4 bytes for the centroid and H x bits / 8, rounded up."""
        return ID_BYTES + -(-hidden_size * bits // 8)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.arrays["centroids"].shape[1])

    def readable(self, packed_MW: np.ndarray) -> np.ndarray:
        """Return bool [M]: whether the codec has the centroid."""
        return _ids(packed_MW) < len(self.arrays["centroids"])

    def project(self, query_vectors_MH: np.ndarray) -> np.ndarray:
        """Return float32 [M, H]: the vectors as they are."""
        return query_vectors_MH.astype(np.float32)

    def reconstruct(self, packed_MW: np.ndarray) -> np.ndarray:
        """Return float32 [M, H]: centroid plus residual, made as long as 1."""
        vectors_MH = self.arrays["centroids"][_ids(packed_MW)]
        vectors_MH += look_up(packed_MW[:, ID_BYTES:], self._levels_VW[None])
        return unit(vectors_MH)

    def _encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        ids_M = nearest_centroids(vectors_MH, self.arrays["centroids"])
        residuals_MH = vectors_MH - self.arrays["centroids"][ids_M]
        numbers_MH = np.searchsorted(self.arrays["cuts"], residuals_MH).astype(np.uint8)
        parts_MGW = numbers_MH.reshape(len(numbers_MH), -1, len(self._shifts_W)) << self._shifts_W
        bytes_MG = np.bitwise_or.reduce(parts_MGW, axis=2)
        return np.concatenate([ids_M.astype("<u4")[:, None].view(np.uint8), bytes_MG], axis=1)

    def _leave(self, reconstructed_MH: np.ndarray) -> np.ndarray:
        return reconstructed_MH

    def _products(self, query_LH: np.ndarray) -> Products:
        tables_GVL = product_tables(query_LH, self._levels_VW[None], self.bytes_per_vector - ID_BYTES)
        centroid_products_CL = self.arrays["centroids"] @ query_LH.T

        def products(packed_NW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            ids_N, residuals_NG = _ids(packed_NW), np.ascontiguousarray(packed_NW[:, ID_BYTES:])
            if ids_N.max(initial=0) >= len(centroid_products_CL):
                raise self._of_another()
            products_NL = centroid_products_CL[ids_N]
            products_NL += table_sums(residuals_NG, tables_GVL)
            squared_N = np.empty(len(packed_NW), np.float32)
            squared_lengths(self.arrays["centroids"], ids_N, residuals_NG, self._levels_VW, squared_N)
            return products_NL, squared_N

        return products


def centroid_count(n_vectors: int, n_sample: int) -> int:
    """Return C, a power of two: ColBERTv2's 16 times the root of the vectors, and at least 4 sampled ones for each."""
    wanted = min(16 * math.sqrt(n_vectors), n_sample / _LEAST_PER_CENTROID)
    return 1 << int(math.log2(max(1, wanted)))


def _ids(packed_NW: np.ndarray) -> np.ndarray:
    ids_N: np.ndarray = np.ascontiguousarray(packed_NW[:, :ID_BYTES]).view("<u4")[:, 0].astype(np.int64)
    return ids_N

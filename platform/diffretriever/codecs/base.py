"""The codec interface: slot vectors as rows of bytes, which from then on are what is stored of them.

Legend: M vectors, N vectors of all passages, H hidden size, Q queries, P passages, L query vectors
scored together.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
import safetensors.numpy

from diffretriever.codecs.rows import SHORTEST, checked, mean_per_query, passage_blocks, slices
from diffretriever.files import write_bytes
from diffretriever.kernels.codes import best_of_passages
from schemas.codec import Bits, CodecConfig, Family

Products: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Codes of N vectors → float32 products [N, L] with vectors not yet of unit length, and their squared lengths [N]."""

_SHARED_QUERIES = 64
"""Query vectors scored in one pass over the codes."""


class Codec(ABC):
    """A trained codec. Rows of codes have one width, all that a vector needs included, so they fit one column of bytes.

    Each vector is decoded by itself: its bits do not depend on its company.
    """

    family: ClassVar[Family]

    def __init__(self, bits: Bits, arrays: dict[str, np.ndarray]) -> None:
        """Hold what `train` found, or what a file has: a family's own arrays by name."""
        self.config = CodecConfig(self.family, bits)
        # safetensors writes the bytes as they lie, whatever their order.
        self.arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    @classmethod
    @abstractmethod
    def train(cls, bits: Bits, sample_MH: np.ndarray, n_vectors: int, seed: int) -> Self:
        """Learn a codec; see `diffretriever.codecs.train_codec`."""

    @classmethod
    @abstractmethod
    def width(cls, bits: Bits, hidden_size: int) -> int:
        """Return the bytes that a vector of H dimensions takes."""

    @property
    @abstractmethod
    def hidden_size(self) -> int:
        """H."""

    @property
    def bytes_per_vector(self) -> int:
        """The width of a row of codes."""
        return self.width(self.config.bits, self.hidden_size)

    def encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        """Return uint8 [M, bytes_per_vector] of float16 or float32 vectors, L2-normalised.

        Raises:
            ValueError: another hidden size than the codec's, or a value that is no finite number.
        """
        codes = np.empty((len(vectors_MH), self.bytes_per_vector), np.uint8)
        for block in slices(len(vectors_MH)):
            codes[block] = self._encode(checked(vectors_MH[block], self.hidden_size))
        return codes

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return float32 [M, H], L2-normalised: the vectors that are stored from now on.

        Raises:
            ValueError: rows of another width than the codec's, or of another codec.
        """
        self._check_codes(codes)
        if not self.readable(codes).all():
            raise ValueError(
                f"{self.config} {self.digest} cannot have written these codes: read them with the codec that did"
            )
        vectors_MH = np.empty((len(codes), self.hidden_size), np.float32)
        for block in slices(len(codes)):
            vectors_MH[block] = self._leave(self.reconstruct(codes[block]))
        return vectors_MH

    def readable(self, codes: np.ndarray) -> np.ndarray:
        """Return bool [M]: whether rows of the right width can be decoded; where every byte means something, all."""
        return np.ones(len(codes), bool)

    @abstractmethod
    def project(self, query_vectors_MH: np.ndarray) -> np.ndarray:
        """Return float32 [M, H]: query vectors in the codec's own space.

        Their products with what `reconstruct` returns are those of the vectors themselves with what `decode` returns,
        up to fp32 rounding.
        """

    @abstractmethod
    def reconstruct(self, codes: np.ndarray) -> np.ndarray:
        """Return float32 [M, H], L2-normalised: the decoded vectors in the codec's own space, cheaper than `decode`."""

    def maxsim(
        self, query_vectors_MH: np.ndarray, query_offsets: np.ndarray, codes: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Score every query against every passage from its codes: `scoring.maxsim` of the decoded vectors, to 1e-5.

        Nothing is decoded: a product is a sum of table entries, one a byte (the tables are the query's products with
        the codewords). The mean over a query's vectors is returned (paper Eq. 2).

        Args:
            query_vectors_MH: float16 or float32 [M, H]; query i owns rows offsets[i] to offsets[i + 1].
            query_offsets: int64 [Q + 1]. A query without vectors scores 0.
            codes: uint8 [N, bytes_per_vector].
            offsets: int64 [P + 1]. A passage without vectors scores -inf.

        Returns:
            float32 [Q, P].

        Raises:
            ValueError: queries of another hidden size, or codes of another width, than the codec's.
        """
        self._check_codes(codes)
        query_LH = self.project(checked(query_vectors_MH, self.hidden_size))
        best_PM = np.empty((len(offsets) - 1, len(query_LH)), np.float32)
        for shared in slices(len(query_LH), _SHARED_QUERIES):
            products = self._products(query_LH[shared])
            for first, last in passage_blocks(offsets):
                products_NL, squared_N = products(codes[offsets[first] : offsets[last]])
                scales_N = 1 / np.sqrt(np.maximum(squared_N, SHORTEST**2))
                best_PL = np.empty((last - first, products_NL.shape[1]), np.float32)
                best_of_passages(products_NL, scales_N, offsets[first : last + 1] - offsets[first], best_PL)
                best_PM[first:last, shared] = best_PL
        scores_QP = mean_per_query(best_PM, query_offsets)
        scores_QP[:, np.diff(offsets) == 0] = -np.inf
        return scores_QP

    def _check_codes(self, codes: np.ndarray) -> None:
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self.bytes_per_vector:
            raise ValueError(
                f"{self.config} codes are rows of {self.bytes_per_vector} bytes, these have shape {list(codes.shape)} "
                f"and dtype {codes.dtype}: read them with the codec that wrote them"
            )

    @abstractmethod
    def _encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        """Return the codes of float32 vectors."""

    @abstractmethod
    def _leave(self, reconstructed_MH: np.ndarray) -> np.ndarray:
        """Return vectors of the codec's own space as vectors of the retriever's."""

    @abstractmethod
    def _products(self, query_LH: np.ndarray) -> Products:
        """Return what scores codes against projected query vectors."""

    def to_bytes(self) -> bytes:
        """Return the codec as a safetensors file, its name in the metadata."""
        return bytes(safetensors.numpy.save(self.arrays, {"codec": str(self.config)}))

    def save(self, place: str | Path) -> None:
        """Write `to_bytes` to a local path or an object-store URI; `load_codec` reads it."""
        write_bytes(place, self.to_bytes())

    @cached_property
    def digest(self) -> str:
        """32 hex digits of everything that codes depend on: equal digests decode alike."""
        return hashlib.blake2b(self.to_bytes(), digest_size=16).hexdigest()

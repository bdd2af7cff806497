"""The codec interface: slot vectors packed into rows of bytes, which from then on are what is stored of them.

Legend: M vectors, N vectors of all passages, H hidden size, W bytes of a packed vector, Q queries, P passages, L query
vectors scored together.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
import safetensors.numpy

from diffretriever.codecs.kernels import best_of_passages
from diffretriever.files import write_bytes
from diffretriever.representations import runs
from diffretriever.schemas.codec import Bits, CodecConfig, Family

Products: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""N packed vectors → float32 products [N, L] with vectors not yet of unit length, and their squared lengths [N]."""

BLOCK = 8192
"""Vectors of one step: few enough that what is computed from them stays in a cache."""
SHORTEST = np.float32(1e-12)
"""Vectors shorter than this are left as they are when others are made as long as 1."""
_SHARED_QUERIES = 64
"""Query vectors scored in one pass over the packed vectors."""


class Codec(ABC):
    """A trained codec. Packed vectors have one width, all that is needed included, so they fit one column of bytes.

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
        """Learn a codec; see `diffretriever.codecs.train_codec`.

        Args:
            bits: of a dimension.
            sample_MH: float32 [M, H], unit vectors.
            n_vectors: how many will be coded.
            seed: of random beginnings.
        """

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
        """W."""
        return self.width(self.config.bits, self.hidden_size)

    def encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        """Return uint8 [M, W]: float16 or float32 vectors, L2-normalised, packed.

        Raises:
            ValueError: another hidden size than the codec's, or a value that is no finite number.
        """
        packed_MW = np.empty((len(vectors_MH), self.bytes_per_vector), np.uint8)
        for block in slices(len(vectors_MH)):
            packed_MW[block] = self._encode(checked(vectors_MH[block], self.hidden_size))
        return packed_MW

    def _of_another(self) -> ValueError:
        return ValueError(
            f"{self.config} {self.digest} cannot have written these codes: read them with the codec that did; if they "
            "are damaged, `python jobs/inspect_index.py --verify` says where"
        )

    def decode(self, packed_MW: np.ndarray) -> np.ndarray:
        """Return float32 [M, H], L2-normalised: the vectors that are stored from now on.

        Raises:
            ValueError: rows of another width than the codec's, or of another codec.
        """
        self._check_packed(packed_MW)
        if not self.readable(packed_MW).all():
            raise self._of_another()
        vectors_MH = np.empty((len(packed_MW), self.hidden_size), np.float32)
        for block in slices(len(packed_MW)):
            vectors_MH[block] = self._leave(self.reconstruct(packed_MW[block]))
        return vectors_MH

    def readable(self, packed_MW: np.ndarray) -> np.ndarray:
        """Return bool [M]: whether rows of the right width can be decoded; where every byte means something, all."""
        return np.ones(len(packed_MW), bool)

    @abstractmethod
    def project(self, query_vectors_MH: np.ndarray) -> np.ndarray:
        """Return float32 [M, H]: query vectors in the codec's own space.

        Their products with what `reconstruct` returns are those of the vectors themselves with what `decode` returns,
        up to fp32 rounding.
        """

    @abstractmethod
    def reconstruct(self, packed_MW: np.ndarray) -> np.ndarray:
        """Return float32 [M, H], L2-normalised: the decoded vectors in the codec's own space, cheaper than `decode`."""

    def maxsim(
        self, query_vectors_MH: np.ndarray, query_offsets: np.ndarray, packed_NW: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Score every query against every passage: `scoring.maxsim` of the decoded vectors, to 1e-5.

        Nothing is decoded: a product is a sum of table entries, one a byte (the tables are the query's products with
        the codewords). The mean over a query's vectors is returned (paper Eq. 2).

        Args:
            query_vectors_MH: float16 or float32 [M, H]; query i owns rows offsets[i] to offsets[i + 1].
            query_offsets: int64 [Q + 1]. A query without vectors scores 0.
            packed_NW: uint8 [N, W].
            offsets: int64 [P + 1]. A passage without vectors scores -inf.

        Returns:
            float32 [Q, P].

        Raises:
            ValueError: queries of another hidden size, or packed vectors of another width, than the codec's; or packed
                vectors of another codec.
        """
        self._check_packed(packed_NW)
        query_LH = self.project(checked(query_vectors_MH, self.hidden_size))
        best_PM = np.empty((len(offsets) - 1, len(query_LH)), np.float32)
        for shared in slices(len(query_LH), _SHARED_QUERIES):
            products = self._products(query_LH[shared])
            for run in runs(offsets, BLOCK):
                own = offsets[run.start : run.stop + 1]
                products_NL, squared_N = products(packed_NW[own[0] : own[-1]])
                scales_N = 1 / np.sqrt(np.maximum(squared_N, SHORTEST**2))
                best_PL = np.empty((len(own) - 1, products_NL.shape[1]), np.float32)
                best_of_passages(products_NL, scales_N, own - own[0], best_PL)
                best_PM[run, shared] = best_PL
        scores_QP = mean_per_query(best_PM, query_offsets)
        scores_QP[:, np.diff(offsets) == 0] = -np.inf
        return scores_QP

    def _check_packed(self, packed_MW: np.ndarray) -> None:
        if packed_MW.dtype != np.uint8 or packed_MW.ndim != 2 or packed_MW.shape[1] != self.bytes_per_vector:
            raise ValueError(
                f"{self.config} codes are rows of {self.bytes_per_vector} bytes, these have shape "
                f"{list(packed_MW.shape)} and dtype {packed_MW.dtype}: read them with the codec that wrote them"
            )

    @abstractmethod
    def _encode(self, vectors_MH: np.ndarray) -> np.ndarray:
        """Return float32 vectors packed."""

    @abstractmethod
    def _leave(self, reconstructed_MH: np.ndarray) -> np.ndarray:
        """Return vectors of the codec's own space as vectors of the retriever's."""

    @abstractmethod
    def _products(self, query_LH: np.ndarray) -> Products:
        """Return what scores packed vectors against projected query vectors."""

    def to_bytes(self) -> bytes:
        """Return the codec as a safetensors file, its name in the metadata."""
        return bytes(safetensors.numpy.save(self.arrays, {"codec": str(self.config)}))

    def save(self, place: str | Path) -> None:
        """Write `to_bytes` to a local path or an object-store URI; `load_codec` reads it."""
        write_bytes(place, self.to_bytes())

    @cached_property
    def digest(self) -> str:
        """32 hex digits of everything that packed vectors depend on: equal digests decode alike."""
        return hashlib.blake2b(self.to_bytes(), digest_size=16).hexdigest()


def checked(vectors_MH: np.ndarray, hidden_size: int) -> np.ndarray:
    """Return the vectors as float32 [M, H].

    Raises:
        ValueError: they are not of this hidden size, or one holds NaN or infinity.
    """
    if vectors_MH.ndim != 2 or vectors_MH.shape[1] != hidden_size:
        raise ValueError(
            f"the codec is for vectors of {hidden_size} dimensions, these have shape {list(vectors_MH.shape)}: "
            "train a codec on vectors of the same retriever"
        )
    vectors_MH = np.ascontiguousarray(vectors_MH, np.float32)
    if not np.isfinite(vectors_MH).all():
        raise ValueError("a vector holds NaN or infinity: encode its text again in float32")
    return vectors_MH


def unit(vectors_MH: np.ndarray) -> np.ndarray:
    """Return float32 [M, H] made as long as 1; each row's bits depend on that row alone."""
    lengths_M1 = np.linalg.norm(vectors_MH, axis=1, keepdims=True)
    made: np.ndarray = vectors_MH / np.maximum(lengths_M1, SHORTEST)
    return made


def slices(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Cut so many rows into runs of at most `size`."""
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))


def mean_per_query(best_PM: np.ndarray, query_offsets: np.ndarray) -> np.ndarray:
    """Return float32 [Q, P]: the mean of each query's columns of float32 [P, M]; 0 for a query that owns none."""
    counts_Q = np.diff(query_offsets)
    filled = np.flatnonzero(counts_Q)
    scores_QP = np.zeros((len(counts_Q), len(best_PM)), np.float32)
    if len(filled):
        sums_PQ = np.add.reduceat(best_PM, query_offsets[filled], axis=1)
        scores_QP[filled] = (sums_PQ / counts_Q[filled].astype(np.float32)).T
    return scores_QP

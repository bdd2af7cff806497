"""Binary sketches: two bits for each of a vector's 192 principal directions, and products by counting bits.

Vectors are projected onto the principal directions of a sample, which a random rotation mixes to equalise them. Vectors
are quantised to four levels and queries to sixteen, so a product is a weighted sum of popcounts over pairs of digits.
The estimate is scaled as in RaBitQ (Gao and Long, 2024, arXiv 2405.12497): exact if the query is the vector itself.

    1 0 1 1 …   higher digits of a vector      1 1 0 1 …   one of four digits of a query      2 x 2^digit x count(and)
    0 0 1 0 …   lower digits                                                                  1 x 2^digit x count(and)

The higher digits (signs) give a coarse estimate from half of the bytes for all vectors. Lower digits are read only for
vectors that reach the threshold.

Legend: P vectors, H hidden size, D directions, S vectors of a sample, B blocks of 32 vectors, W words of 64 directions,
L digits of a query, C vectors found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from diffretriever.core.kernels import kernel

DIRECTIONS = 192
"""D."""
_WORDS = DIRECTIONS // 64
_BLOCK = 32
"""Vectors per block; blocks of 64 are read at half the speed."""
SKETCH_BYTES = 2 * DIRECTIONS // 8 + 4
"""Size of a sketch: bits and factor."""
READ_BYTES = DIRECTIONS // 8 + 4
"""Bytes of each sketch that every query reads."""
_STEP = 0.95
"""Quantisation step in root mean squares of the vector; optimal for four levels."""
_LEVELS, _QUERY_LEVELS = 4, 16
_MIDDLE, _QUERY_MIDDLE = np.float32((_LEVELS - 1) / 2), np.float32((_QUERY_LEVELS - 1) / 2)
_DIGITS = 4
_POWER_ROUNDS = 4
_BY_SIGNS = np.float32(1.137)
"""Scale of sign products relative to products of quantised values: for normal variates, the mean product with the sign
is .798 and with the quantised value .907 (`_STEP`)."""
_NONE, _ONE, _TWO, _THREE, _FOUR, _LAST_BYTE = (np.uint64(number) for number in (0, 1, 2, 3, 4, 56))
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _BYTE_ONES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


def main_directions(sample_SH: np.ndarray) -> np.ndarray:
    """Return the principal directions of a sample (float32 [S, H]), mixed by a random rotation, float32 [H, D].

    Projection preserves inner products if H <= D, and approximates them otherwise.
    """
    count = min(DIRECTIONS, *sample_SH.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        axes_HC = torch.svd_lowrank(torch.from_numpy(sample_SH), q=count, niter=_POWER_ROUNDS)[2].numpy()
    rotation_DD = np.linalg.qr(np.random.default_rng(0).standard_normal((DIRECTIONS, DIRECTIONS)))[0]
    mixed: np.ndarray = axes_HC @ rotation_DD[:count].astype(np.float32)
    return mixed


class SketchedQuery(NamedTuple):
    """A quantised query."""

    digits_LW: np.ndarray
    """uint64 [4, W], binary digits, lowest first."""
    total: np.float32
    """Sum of the centred quantised values."""
    step: np.float32
    """Quantisation step."""

    @classmethod
    def of(cls, query_D: np.ndarray) -> Self:
        """Quantise a query projected onto the sketches' directions, float32 [D]."""
        step = max(float(np.abs(query_D).max() / _QUERY_MIDDLE), 1e-30)
        digits_D = np.clip(np.floor(query_D / step + _QUERY_LEVELS / 2), 0, _QUERY_LEVELS - 1).astype(np.uint8)
        digits_LW = np.stack([_words((digits_D >> digit & 1)[None])[0] for digit in range(_DIGITS)])
        return cls(digits_LW, np.float32(digits_D.sum()) - _QUERY_MIDDLE * DIRECTIONS, np.float32(step))


class SketchHits(NamedTuple):
    """Vectors that reach the threshold."""

    numbers_C: np.ndarray
    """int64 [C], ascending."""
    by_signs_C: np.ndarray
    """float32 [C], estimated products from the higher digits."""
    products_C: np.ndarray
    """float32 [C], estimated products from all digits."""


@dataclass(frozen=True)
class Sketches:
    """Sketches of P vectors.

    Attributes:
        higher: uint64 [B, W, 32], higher digits in blocks of 32 vectors.
        lower_PW: uint64, lower digits.
        factors_P: float32, scale of the estimates; 0 for a zero vector.
    """

    higher: np.ndarray
    lower_PW: np.ndarray
    factors_P: np.ndarray

    def __len__(self) -> int:
        return len(self.factors_P)

    @classmethod
    def of(cls, vectors_PD: np.ndarray) -> Self:
        """Sketch projected vectors, float32 [P, D]."""
        lengths_P = np.linalg.norm(vectors_PD, axis=1)
        steps_P1 = np.maximum(_STEP * lengths_P / np.sqrt(DIRECTIONS), 1e-30)[:, None]
        digits_PD = np.clip(np.floor(vectors_PD / steps_P1) + _LEVELS // 2, 0, _LEVELS - 1).astype(np.uint8)
        products_P = np.einsum("pd,pd->p", digits_PD - _MIDDLE, vectors_PD)
        factors_P = np.divide(lengths_P**2, products_P, out=np.zeros_like(lengths_P), where=products_P > 0)
        return cls(_in_blocks(_words(digits_PD >> 1)), _words(digits_PD & 1), factors_P)

    @classmethod
    def of_arrays(cls, higher: np.ndarray, lower: np.ndarray, factors_P: np.ndarray) -> Self:
        """Return sketches from their arrays, flattened; raise ValueError if these are inconsistent."""
        blocks = -(-len(factors_P) // _BLOCK)
        return cls(higher.reshape(blocks, _WORDS, _BLOCK), lower.reshape(len(factors_P), _WORDS), factors_P)

    def take(self, rows: np.ndarray) -> Self:
        """Return the sketches of the given rows, int64."""
        higher = _in_blocks(self.higher[rows // _BLOCK, :, rows % _BLOCK])
        return type(self)(higher, self.lower_PW[rows], self.factors_P[rows])

    def search(self, query: SketchedQuery, threshold: float, live_P: np.ndarray) -> SketchHits:
        """Return the live vectors whose product by the higher digits reaches `threshold`; -inf returns all."""
        size = len(self)
        buffers = SketchHits(np.empty(size, np.int64), np.empty(size, np.float32), np.empty(size, np.float32))
        count = find(query, np.float32(threshold), live_P, self.higher, self.lower_PW, self.factors_P, buffers)
        return SketchHits(*(buffer_C[:count] for buffer_C in buffers))


def _in_blocks(words_PW: np.ndarray) -> np.ndarray:
    """Rearrange uint64 [P, W] to [B, W, 32]; zeros fill the last block."""
    blocks = -(-len(words_PW) // _BLOCK)
    filled = np.zeros((blocks * _BLOCK, _WORDS), np.uint64)
    filled[: len(words_PW)] = words_PW
    return np.ascontiguousarray(filled.reshape(blocks, _BLOCK, _WORDS).transpose(0, 2, 1))


def _words(bits_PD: np.ndarray) -> np.ndarray:
    return np.packbits(bits_PD, axis=1, bitorder="little").view(np.uint64)


@kernel(inline="always")
def _ones(word: np.uint64) -> np.uint64:
    """Count the set bits in the form that compilers recognise as popcount."""
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _FOURS) + ((word >> _TWO) & _FOURS)
    word = (word + (word >> _FOUR)) & _BYTES
    return (word * _BYTE_ONES) >> _LAST_BYTE


@kernel(inline="always")
def _count(words_WB: np.ndarray, query_LW: np.ndarray, sums_B: np.ndarray) -> None:
    """Sum the centred query digits [4, W] over the set bits of 32 vectors [W, 32]."""
    for i in range(_BLOCK):
        # Shifting only the sums lets the compiler recognise popcount.
        ones = firsts = seconds = thirds = fourths = _NONE
        for word in range(_WORDS):
            digits = words_WB[word, i]
            ones += _ones(digits)
            firsts += _ones(digits & query_LW[0, word])
            seconds += _ones(digits & query_LW[1, word])
            thirds += _ones(digits & query_LW[2, word])
            fourths += _ones(digits & query_LW[3, word])
        counts = firsts + (seconds << _ONE) + (thirds << _TWO) + (fourths << _THREE)
        sums_B[i] = np.float32(np.int64(counts)) - _QUERY_MIDDLE * np.float32(np.int64(ones))


@kernel()
def find(
    query: SketchedQuery,
    threshold: np.float32,
    live_P: np.ndarray,
    higher: np.ndarray,
    lower_PW: np.ndarray,
    factors_P: np.ndarray,
    buffers: SketchHits,
) -> int:
    """Write the live vectors that reach `threshold` by the higher digits to `buffers`; return their number.

    `buffers` have capacity for all vectors.
    """
    numbers_C, by_signs_C, products_C = buffers
    count, vectors = 0, factors_P.shape[0]
    sums_B, by_signs_B = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    for block in range(higher.shape[0]):
        _count(higher[block], query.digits_LW, sums_B)
        first = block * _BLOCK
        within = min(_BLOCK, vectors - first)
        for i in range(within):
            by_signs_B[i] = (2 * sums_B[i] - query.total) * _BY_SIGNS * query.step * factors_P[first + i]
        for i in range(within):
            if by_signs_B[i] >= threshold and live_P[first + i]:
                numbers_C[count], by_signs_C[count], products_C[count] = first + i, by_signs_B[i], sums_B[i]
                count += 1
    words_WB = np.zeros((_WORDS, _BLOCK), np.uint64)
    for first in range(0, count, _BLOCK):
        within = min(_BLOCK, count - first)
        for i in range(within):
            for word in range(_WORDS):
                words_WB[word, i] = lower_PW[numbers_C[first + i], word]
        _count(words_WB, query.digits_LW, sums_B)
        for c in range(first, first + within):
            digits = 2 * products_C[c] + sums_B[c - first] - _MIDDLE * query.total
            products_C[c] = digits * query.step * factors_P[numbers_C[c]]
    return count

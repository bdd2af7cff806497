"""Two bits for each of a vector's 192 main directions, and products with a query by counting bits.

Vectors are turned into the directions in which a sample of them is longest (principal directions), and these are mixed
by a random rotation, so that all count alike. A number becomes one of four steps, a query's one of sixteen; the sum of
products of such numbers is a sum of counts of common bits, one for each pair of their binary digits. The estimate is
scaled as in RaBitQ (Gao and Long, 2024, arXiv 2405.12497), so that it is right for a query that is the vector itself.

    1 0 1 1 …   higher digits of a vector      1 1 0 1 …   one of four digits of a query      2 x 2^digit x count(and)
    0 0 1 0 …   lower digits                                                                  1 x 2^digit x count(and)

Legend: P vectors, H hidden size, D directions, S vectors of a sample, B blocks of 32 vectors, W words of 64 directions,
L digits of a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numba import njit

DIRECTIONS = 192
"""D."""
_WORDS = DIRECTIONS // 64
_BLOCK = 32
"""Vectors side by side: with 64, words lie so that a processor fetches them at half the speed."""
SKETCH_BYTES = 2 * DIRECTIONS // 8 + 8
"""Of one vector: its bits, the sum of its digits, its factor."""
_STEP = 0.95
"""Of a number, in root mean squares of the vector's: with it, four steps lose least."""
_LEVELS, _QUERY_LEVELS = 4, 16
_MIDDLE, _QUERY_MIDDLE = (_LEVELS - 1) / 2, (_QUERY_LEVELS - 1) / 2
_DIGITS = 4
_POWER_ROUNDS = 4
_NONE, _ONE, _TWO, _THREE, _FOUR, _LAST_BYTE = (np.uint64(number) for number in (0, 1, 2, 3, 4, 56))
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _BYTE_ONES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


def main_directions(sample_SH: np.ndarray) -> np.ndarray:
    """Return float32 [H, D]: the directions in which vectors are longest, mixed by a random rotation.

    A product with them keeps inner products of vectors of up to D dimensions, and most of those of longer ones.

    Args:
        sample_SH: float32 [S, H].
    """
    count = min(DIRECTIONS, *sample_SH.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        axes_HC = torch.svd_lowrank(torch.from_numpy(sample_SH), q=count, niter=_POWER_ROUNDS)[2].numpy()
    rotation_DD = np.linalg.qr(np.random.default_rng(0).standard_normal((DIRECTIONS, DIRECTIONS)))[0]
    mixed: np.ndarray = axes_HC @ rotation_DD[:count].astype(np.float32)
    return mixed


@dataclass(frozen=True)
class Sketches:
    """Sketches of P vectors.

    Attributes:
        bits: uint64 [B, 2, W, 32]: the lower and the higher digits of the directions of 32 vectors at a time.
        sums_P: float32, the sum of each vector's digits.
        factors_P: float32, what a sum of products is multiplied by; 0 for a vector of zeros.
    """

    bits: np.ndarray
    sums_P: np.ndarray
    factors_P: np.ndarray

    def __len__(self) -> int:
        return len(self.factors_P)

    @classmethod
    def of(cls, vectors_PD: np.ndarray) -> Self:
        """Sketch float32 [P, D]: vectors times their main directions."""
        lengths_P = np.linalg.norm(vectors_PD, axis=1)
        steps_P1 = np.maximum(_STEP * lengths_P / np.sqrt(DIRECTIONS), 1e-30)[:, None]
        digits_PD = np.clip(np.floor(vectors_PD / steps_P1) + _LEVELS // 2, 0, _LEVELS - 1).astype(np.uint8)
        own_P = np.einsum("pd,pd->p", digits_PD - np.float32(_MIDDLE), vectors_PD)
        factors_P = np.divide(lengths_P**2, own_P, out=np.zeros_like(lengths_P), where=own_P > 0)
        return cls(_in_blocks(digits_PD), digits_PD.sum(axis=1, dtype=np.float32), factors_P)

    def products(self, query_D: np.ndarray, out_P: np.ndarray) -> None:
        """Write estimates of the products of all vectors with a query.

        Args:
            query_D: float32 [D], the query times the same directions.
            out_P: float32 [P], overwritten.
        """
        step = max(float(np.abs(query_D).max()) / _QUERY_MIDDLE, 1e-30)
        digits_D = np.clip(np.floor(query_D / step + _QUERY_LEVELS / 2), 0, _QUERY_LEVELS - 1).astype(np.uint8)
        query_LW = np.stack([_words((digits_D >> digit & 1)[None])[0] for digit in range(_DIGITS)])
        rest = _MIDDLE * _QUERY_MIDDLE * DIRECTIONS - _MIDDLE * float(digits_D.sum())
        count_bits(self.bits, query_LW, self.sums_P, self.factors_P, np.float32(rest), np.float32(step), out_P)


def bits_shape(vectors: int) -> tuple[int, int, int, int]:
    """Return the shape of the bits of so many vectors."""
    return -(-vectors // _BLOCK), 2, _WORDS, _BLOCK


def _in_blocks(digits_PD: np.ndarray) -> np.ndarray:
    """Return uint64 [B, 2, W, 32] of digits from 0 to 3; the last block is filled up with zeros."""
    blocks, *_ = bits_shape(len(digits_PD))
    words = np.zeros((blocks * _BLOCK, 2, _WORDS), np.uint64)
    for digit in range(2):
        words[: len(digits_PD), digit] = _words(digits_PD >> digit & 1)
    return np.ascontiguousarray(words.reshape(blocks, _BLOCK, 2, _WORDS).transpose(0, 2, 3, 1))


def _words(bits_PD: np.ndarray) -> np.ndarray:
    """Return uint64 [P, W] of zeros and ones."""
    return np.packbits(bits_PD, axis=1, bitorder="little").view(np.uint64)


@njit(inline="always")
def _ones(word: np.uint64) -> np.uint64:
    """Return how many bits are set, in the steps that a compiler knows as its processor's instruction for it."""
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _FOURS) + ((word >> _TWO) & _FOURS)
    word = (word + (word >> _FOUR)) & _BYTES
    return (word * _BYTE_ONES) >> _LAST_BYTE


@njit(nogil=True, cache=True)
def count_bits(
    bits: np.ndarray,
    query_LW: np.ndarray,
    sums_P: np.ndarray,
    factors_P: np.ndarray,
    rest: np.float32,
    step: np.float32,
    out_P: np.ndarray,
) -> None:
    """Write factors times the sums of products of digits, less what their middles make of them.

    Args:
        bits: uint64 [B, 2, W, 32], as `Sketches` has them.
        query_LW: uint64 [4, W], the digits of a query, lowest first.
        sums_P: float32 [P].
        factors_P: float32 [P].
        rest: what is added to every sum.
        step: of the query's numbers.
        out_P: float32 [P], overwritten.
    """
    counts = np.empty(_BLOCK, np.uint64)
    for block in range(bits.shape[0]):
        for i in range(_BLOCK):
            # Counts are shifted once summed: a shift beside each would hide from the compiler what is counted.
            ones = twos = fours = eights = sixteens = _NONE
            for word in range(_WORDS):
                low, high = bits[block, 0, word, i], bits[block, 1, word, i]
                ones += _ones(low & query_LW[0, word])
                twos += _ones(low & query_LW[1, word]) + _ones(high & query_LW[0, word])
                fours += _ones(low & query_LW[2, word]) + _ones(high & query_LW[1, word])
                eights += _ones(low & query_LW[3, word]) + _ones(high & query_LW[2, word])
                sixteens += _ones(high & query_LW[3, word])
            counts[i] = ones + (twos << _ONE) + (fours << _TWO) + (eights << _THREE) + (sixteens << _FOUR)
        first = block * _BLOCK
        for i in range(min(_BLOCK, out_P.shape[0] - first)):
            total = np.float32(np.int64(counts[i])) - np.float32(_QUERY_MIDDLE) * sums_P[first + i] + rest
            out_P[first + i] = step * factors_P[first + i] * total

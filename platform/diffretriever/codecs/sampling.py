"""A fair sample of a stream of vectors, in the memory of a few samples.

Legend: m vectors of a block, S vectors of the sample, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

SAMPLE_SIZE = 1 << 17
"""Vectors that a codec is trained on where nothing else is asked for."""


def sample_vectors(blocks: Iterable[np.ndarray], size: int = SAMPLE_SIZE, seed: int = 0) -> tuple[np.ndarray, int]:
    """Return up to `size` of the vectors that come by, each as likely as any other, and how many came.

    The same stream gives the same sample however it is cut into blocks.

    Args:
        blocks: floating [m, H], at least one block.
        size: S, at least 1.
        seed: of the draw.

    Returns:
        [S, H] in the dtype of the blocks and in their order, or all vectors where there are fewer; and the count.
    """
    generator = np.random.default_rng(seed)
    pieces: list[np.ndarray] = []
    draws: list[np.ndarray] = []
    count, limit = 0, 1.0
    for block_mH in blocks:
        count += len(block_mH)
        # Every vector draws a number; those with the smallest numbers are the sample.
        drawn_m = generator.random(len(block_mH))
        pieces.append(block_mH[drawn_m < limit])
        draws.append(drawn_m[drawn_m < limit])
        if sum(map(len, draws)) > 2 * size:
            smallest_SH, smallest_S = _smallest(pieces, draws, size)
            pieces, draws, limit = [smallest_SH], [smallest_S], float(smallest_S.max())
    assert pieces, "a stream has at least one block"
    return _smallest(pieces, draws, size)[0], count


def _smallest(pieces: list[np.ndarray], draws: list[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    vectors_SH, drawn_S = np.concatenate(pieces), np.concatenate(draws)
    if len(drawn_S) <= size:
        return vectors_SH, drawn_S
    kept_S = np.sort(np.argpartition(drawn_S, size)[:size])
    return vectors_SH[kept_S], drawn_S[kept_S]

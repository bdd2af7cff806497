"""What single vectors for whole passages find, each scored exactly: means, and MUVERA's fixed-dimensional encodings.

MUVERA (Dhulipala and others, 2024, arXiv 2405.19504): random hyperplanes cut the space into buckets. A query's vectors
are added up in each bucket, a passage's averaged, the nearest taken where a bucket has none; a random projection makes
what is in a bucket shorter, and all of it is repeated with other hyperplanes. Products of such encodings approximate
MaxSim.

Legend: P passages, K slots of a passage, Q queries, M slots of a query, H hidden size, S sides of hyperplanes,
B buckets, D numbers of a bucket, E numbers of an encoding, C candidates, W wanted passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pydantic import PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.search.arrays import Arrays
from diffretriever.scoring.maxsim import maxsim

_WANTED = 100
_BLOCK = 5_000
"""Passages encoded at once."""


class CoarseBenchmark(Benchmark):
    """Measure how many candidates hold the best hundred, by means and by fixed-dimensional encodings, on one thread."""

    real: Path
    """What `python -m benchmarks.search.arrays` wrote."""
    slots: tuple[PositiveInt, ...] = (4, 16)
    """K_p."""
    queries: PositiveInt = 100
    """Questions asked."""
    candidates: tuple[PositiveInt, ...] = (100, 130, 200, 400, 1000)
    """Candidates of a question."""


class Encoding(NamedTuple):
    """A fixed-dimensional encoding's settings."""

    repetitions: int
    hyperplanes: int
    """2 to the power of which there are buckets."""
    projected: int
    """D; H where nothing is projected."""

    @property
    def size(self) -> int:
        """E."""
        return self.repetitions * self.projected << self.hyperplanes


ENCODINGS = (Encoding(10, 2, 32), Encoding(20, 3, 16), Encoding(20, 4, 16), Encoding(5, 2, 384))


def main(config: CoarseBenchmark) -> None:
    """Print a row for each K_p and way."""
    from diffretriever.evaluation.formats.tables import format_table

    torch.set_num_threads(1)
    about, arrays = header(), Arrays.read(config.real)
    asked_QMH = arrays.queries_QMH[: config.queries].astype(np.float32)
    rows: list[list[str]] = []
    for slots in config.slots:
        passages_PKH = arrays.passages_PKH[:, :slots]
        best_QW = _ranked(_in_blocks(passages_PKH, lambda block_PKH: _maxsim(asked_QMH, block_PKH)), _WANTED)
        ways: list[tuple[str, int, Callable[[np.ndarray], np.ndarray]]] = [
            ("mean", passages_PKH.shape[2], lambda block_PKH: asked_QMH.mean(axis=1) @ block_PKH.mean(axis=1).T)
        ]
        for encoding in ENCODINGS:
            scored = Buckets(encoding, passages_PKH.shape[2]).scores(asked_QMH)
            name = f"encodings: {encoding.repetitions} times {1 << encoding.hyperplanes} x {encoding.projected}"
            ways.append((name, encoding.size, scored))
        for name, size, scores in ways:
            named_QC = _ranked(_in_blocks(passages_PKH, scores), max(config.candidates))
            shares = [held(named_QC[:, :count], best_QW) for count in config.candidates]
            rows.append([f"K_p {slots}, {name}", f"{size:,}", *(f"{share:.3f}" for share in shares)])
    what = f"{len(arrays.passages_PKH):,} passages, {len(asked_QMH):,} questions; R@100 of so many candidates"
    columns = ("", "numbers", *(f"{count:,}" for count in config.candidates))
    config.report(about, f"{what}\n\n{format_table(rows, columns)}", results=rows)


class Buckets:
    """Fixed-dimensional encodings of queries and passages with the same hyperplanes and projections."""

    def __init__(self, encoding: Encoding, hidden_size: int) -> None:
        """Draw them."""
        rng = np.random.default_rng(0)
        count, planes, size = encoding
        self._planes = [rng.standard_normal((hidden_size, planes), np.float32) for _ in range(count)]
        signs = [rng.choice([-1.0, 1.0], (hidden_size, size)).astype(np.float32) for _ in range(count)]
        self._projections = [None] * count if size == hidden_size else [each / np.sqrt(size) for each in signs]
        self._count = 1 << planes

    def scores(self, asked_QMH: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return what gives the products of these queries' encodings with those of passages (float32 [P, K, H])."""
        queries_QE = self.queries(asked_QMH)
        return lambda passages_PKH: queries_QE @ self.passages(passages_PKH).T

    def queries(self, vectors_QMH: np.ndarray) -> np.ndarray:
        """Return float32 [Q, E]: sums of the vectors in each bucket."""
        parts = [self._sums(vectors_QMH, planes)[0] for planes in self._planes]
        return self._joined(parts)

    def passages(self, vectors_PKH: np.ndarray) -> np.ndarray:
        """Return float32 [P, E]: means of the vectors in each bucket, or the vector that differs by fewest sides."""
        parts = []
        for planes in self._planes:
            sums_PBH, counts_PB = self._sums(vectors_PKH, planes)
            sums_PBH /= np.maximum(counts_PB, 1)[:, :, None]
            sides_PKS = (vectors_PKH @ planes > 0)[:, :, None]
            wanted_BS = np.arange(self._count)[:, None] >> np.arange(planes.shape[1]) & 1 > 0
            nearest_PB = (sides_PKS != wanted_BS).sum(axis=3).argmin(axis=1)
            owners, buckets = np.nonzero(counts_PB == 0)
            sums_PBH[owners, buckets] = vectors_PKH[owners, nearest_PB[owners, buckets]]
            parts.append(sums_PBH)
        return self._joined(parts)

    def _sums(self, vectors_PKH: np.ndarray, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return float32 [P, B, H], sums of the vectors in each bucket, and how many these are, int64 [P, B]."""
        bucket_PK = (vectors_PKH @ planes > 0) @ (1 << np.arange(planes.shape[1]))
        is_in_PKB = bucket_PK[:, :, None] == np.arange(self._count)
        return np.einsum("pkb,pkh->pbh", is_in_PKB.astype(np.float32), vectors_PKH, optimize=True), is_in_PKB.sum(1)

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        pairs = zip(parts, self._projections, strict=True)
        projected = [part if signs is None else part @ signs for part, signs in pairs]
        return np.concatenate([part.reshape(len(part), -1) for part in projected], axis=1)


def held(named_QC: np.ndarray, best_QW: np.ndarray) -> float:
    """Return the mean share of each query's wanted passages that are named."""
    return float(np.mean([np.isin(best_W, named_C).mean() for best_W, named_C in zip(best_QW, named_QC, strict=True)]))


def _maxsim(asked_QMH: np.ndarray, passages_PKH: np.ndarray) -> np.ndarray:
    """Return float32 [Q, P]."""
    sides = [(torch.from_numpy(each.reshape(-1, each.shape[2])), _offsets(each)) for each in (asked_QMH, passages_PKH)]
    scores: np.ndarray = maxsim(*sides[0], *sides[1]).numpy()
    return scores


def _offsets(vectors_PKH: np.ndarray) -> np.ndarray:
    return np.arange(len(vectors_PKH) + 1) * vectors_PKH.shape[1]


def _in_blocks(passages_PKH: np.ndarray, scores: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(passages_PKH), _BLOCK):
            yield scores(passages_PKH[start : start + _BLOCK].astype(np.float32))

    return np.concatenate(list(blocks()), axis=1)


def _ranked(scores_QP: np.ndarray, count: int) -> np.ndarray:
    found: np.ndarray = torch.from_numpy(scores_QP).topk(min(count, scores_QP.shape[1])).indices.numpy()
    return found


if __name__ == "__main__":
    run(CoarseBenchmark, main)

"""Retrieves candidates by binary sketches of mean vectors, at 28 bytes per passage.

Each passage is represented by the mean of its slot vectors: one product per passage instead of K_q times K_p. Sketches
retrieve eight times the requested number of passages, and 8-bit codes of the means rerank them. A sample of sketches
estimates the threshold first, so most passages are pruned by half of their bits.

Legend: Q queries, P passages of a segment, S sampled ones of all segments, H hidden size, D directions, C chosen
passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from diffretriever.core.progress import track
from diffretriever.index.derived import (
    DamagedError,
    DerivedFolder,
    for_all,
    read_array,
    write_arrays,
)
from diffretriever.index.table import PassageIndex
from diffretriever.search.dense.coded import CodedPassages
from diffretriever.search.dense.codes import Segment
from diffretriever.vectors.maxsim import CodedQueries, Codes
from diffretriever.vectors.representations import Representations
from diffretriever.vectors.sketches import (
    DIRECTIONS,
    SketchedQuery,
    Sketches,
    main_directions,
)

SKETCHES = "sketch"
"""Subfolder of a segment's codes that contains its sketches."""
_FILES = {"directions": np.float32, "higher": np.uint64, "lower": np.uint64, "factors": np.float32}
_SAMPLED = 8192
"""Means of a segment sampled for its main directions."""
_AT_ONCE = 16_384
"""Passages sketched per batch; a multiple of the sketches' block size."""
_SKETCHED_PER_CANDIDATE = 8
"""Passages retrieved by sketches per candidate."""
_FEWEST_SKETCHED = 512
"""Minimum retrieved by sketches; reading their means takes 0.1 ms."""
_LEAST_SAMPLE, _MOST_APART = 8192, 64
"""Minimum size of the sample in a large index, and maximum step between sampled passages."""
_DOUBT = 1.5
"""Tolerance of estimates from half of the bits, in standard deviations."""


@dataclass(frozen=True)
class MeanSketches:
    """The sketches of a segment's mean vectors.

    Attributes:
        directions_HD: float32 [H, D].
        sketches: of the segment's passages, in order.
    """

    directions_HD: np.ndarray
    sketches: Sketches

    @classmethod
    def of(cls, means: Codes) -> Self:
        """Sketch all mean vectors in the main directions of a sample."""
        rows = np.sort(np.random.default_rng(0).choice(len(means), min(len(means), _SAMPLED), replace=False))
        directions_HD = main_directions(means.decoded(rows))
        blocks = np.split(np.arange(len(means)), range(_AT_ONCE, len(means), _AT_ONCE))
        parts = [Sketches.of(means.decoded(rows) @ directions_HD) for rows in blocks]
        arrays = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("higher", "lower_PW", "factors_P")
        )
        return cls(directions_HD, Sketches(*arrays))

    def write(self, folder: Path) -> None:
        """Write one file per array to a folder."""
        sketches = self.sketches
        arrays = (self.directions_HD, sketches.higher, sketches.lower_PW, sketches.factors_P)
        write_arrays(folder, _FILES, [dict(zip(_FILES, arrays, strict=True))])

    @classmethod
    def open(cls, folder: DerivedFolder, segment: Segment | None = None) -> Self | None:
        """Read the sketches of a folder into memory, which makes searches a third faster than mapped files.

        Raises:
            DamagedError: the sketches are unreadable or do not match the segment.
        """
        cached = folder.open()
        if cached is None:
            return None
        try:
            arrays = {name: read_array(cached.folder / f"{name}.bin", dtype) for name, dtype in _FILES.items()}
            sketches = Sketches.of_arrays(arrays["higher"], arrays["lower"], arrays["factors"])
            directions_HD = arrays["directions"].reshape(-1, DIRECTIONS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{cached.folder / SKETCHES} cannot be read ({error})") from error
        if segment is not None and (len(sketches), len(directions_HD)) != segment.codes.means.codes_NH.shape:
            raise DamagedError(f"{cached.folder / SKETCHES} does not fit its codes")
        return cls(directions_HD, sketches)


def _sketches_of(segment: Segment) -> MeanSketches | None:
    return MeanSketches.open(segment.folder.below(SKETCHES), segment)


class CandidateIndex:
    """Retrieves candidate passages of one index version by the product of mean vectors; another stage scores them."""

    def __init__(self, segments: Sequence[Segment], sketches: Sequence[MeanSketches]) -> None:
        """`segments` and `sketches` are parallel lists."""
        self.passages = CodedPassages(segments)
        self._sketches = sketches

    @classmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Build missing and damaged sketches of the segments of an index."""
        total = sum(len(segment.codes) for segment in segments)
        for segment in track(segments, f"sketches → {index.uri}", "passages", total, lambda each: len(each.codes)):
            folder = segment.folder.below(SKETCHES)
            try:
                folder.check()
                is_intact = _sketches_of(segment) is not None
            except DamagedError:
                is_intact = False
            if not is_intact:
                with folder.build() as path:
                    MeanSketches.of(segment.codes.means).write(path)

    @classmethod
    def open(cls, segments: Sequence[Segment]) -> Self:
        """Open the segments that have intact sketches; log damaged ones."""
        opened = for_all(segments[0].index.uri, segments, _sketches_of) if segments else []
        pairs = zip(segments, opened, strict=True)
        intact = [(segment, sketches) for segment, sketches in pairs if sketches is not None]
        return cls([segment for segment, _ in intact], [sketches for _, sketches in intact])

    @staticmethod
    def check(folder: DerivedFolder) -> None:
        """Verify the sketches in a fragment's codes folder, if there are any.

        Raises:
            DamagedError: the sketches differ from their checksums.
        """
        folder.below(SKETCHES).check()
        MeanSketches.open(folder.below(SKETCHES))

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return up to n distinct passages per query as numbers into `passages`, int64 [C], best first."""
        means_QH = means_of(queries)
        coded = CodedQueries(means_QH, np.arange(len(means_QH) + 1))
        return [self._ranked(coded, query, n) for query in range(len(queries))]

    def _ranked(self, coded: CodedQueries, query: int, n: int) -> np.ndarray:
        mean_H = coded.vectors_MH[query]
        # Each segment has its own directions.
        sketched = [SketchedQuery.of(mean_H @ segment.directions_HD) for segment in self._sketches]
        count = max(_FEWEST_SKETCHED, _SKETCHED_PER_CANDIDATE * n)
        chosen_C = self._sketched(sketched, count, self._threshold(sketched, count))
        if len(chosen_C) < min(count, self._n_live):
            chosen_C = self._sketched(sketched, count, -np.inf)
        return chosen_C[highest(self.passages.mean_scores(coded, query, chosen_C), n)]

    def _sketched(self, sketched: Sequence[SketchedQuery], count: int, threshold: float) -> np.ndarray:
        numbers, products = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        segments = zip(self._sketches, sketched, self.passages.starts, self._live, strict=False)
        for segment, query, start, live_P in segments:
            hits = segment.sketches.search(query, threshold, live_P)
            numbers.append(hits.numbers_C + start)
            products.append(hits.products_C)
        return np.sort(np.concatenate(numbers)[highest(np.concatenate(products), count)])

    def _threshold(self, sketched: Sequence[SketchedQuery], count: int) -> float:
        """Estimate the threshold for products from half of the bits, from a sample of the passages."""
        pairs = zip(sketched, self._samples, strict=True)
        hits = [sketches.search(query, -np.inf, live_S) for query, (sketches, live_S) in pairs]
        by_signs_S = np.concatenate([segment.by_signs_C for segment in hits])
        products_S = np.concatenate([segment.products_C for segment in hits])
        threshold = threshold_of(products_S, len(products_S) * count / max(1, self._n_live))
        if threshold == -np.inf:
            return threshold
        errors_S = by_signs_S - products_S
        return threshold + float(errors_S.mean() - _DOUBT * errors_S.std())

    @cached_property
    def _live(self) -> list[np.ndarray]:
        return np.split(self.passages.live_P, self.passages.starts[1:-1])

    @cached_property
    def _n_live(self) -> int:
        return int(self.passages.live_P.sum())

    @cached_property
    def _samples(self) -> list[tuple[Sketches, np.ndarray]]:
        """Sketches of a sample of each segment's passages, and which of them are live."""
        step = min(_MOST_APART, max(1, len(self.passages) // _LEAST_SAMPLE))
        rows = [np.arange(0, len(segment.sketches), step) for segment in self._sketches]
        segments = zip(self._sketches, self._live, rows, strict=True)
        return [(segment.sketches.take(rows_S), live_P[rows_S]) for segment, live_P, rows_S in segments]


def means_of(queries: Representations) -> np.ndarray:
    """Return the mean of each query's vectors, float32 [Q, H]."""
    sums_QH = np.add.reduceat(queries.vectors_MH.astype(np.float32), queries.offsets[:-1])
    means: np.ndarray = sums_QH / np.diff(queries.offsets)[:, None].astype(np.float32)
    return means


def threshold_of(sample_S: np.ndarray, expected: float) -> float:
    """Return a threshold that the expected number of top scores in the sample reaches, with a three-sigma margin.

    Returns -inf if that is the whole sample.
    """
    rank = int(expected + 3 * np.sqrt(expected) + 3)
    if rank >= len(sample_S):
        return -np.inf
    return float(np.partition(sample_S, len(sample_S) - rank)[len(sample_S) - rank])


def highest(scores_P: np.ndarray, n: int) -> np.ndarray:
    """Return the numbers of the n highest scores, highest first."""
    chosen = np.arange(len(scores_P))
    if len(scores_P) > n:
        chosen = np.sort(np.argpartition(scores_P, len(scores_P) - n)[len(scores_P) - n :])
    return chosen[np.argsort(-scores_P[chosen], kind="stable")]

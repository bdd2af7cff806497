"""Candidates by sketches of mean vectors: 28 bytes a passage are read of all, and the codes of the means of few.

A passage is known by the mean of its slot vectors: one product a passage in place of K_q times K_p. Sketches say which
passages have a high product with the mean of the query's vectors, eight times as many as are wanted. The 8-bit codes of
the means of these say which to propose. A sample of the sketches says beforehand how high a product must be for that,
so that most passages are looked at by half of their bits.

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
    read_header,
    write_arrays,
    write_header,
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
    higher_shape,
    lower_shape,
    main_directions,
)

SKETCHES = "sketch"
"""Name of the folder of a segment's sketches, in that of its codes."""
_FILES = {"directions": np.float32, "higher": np.uint64, "lower": np.uint64, "factors": np.float32}
_SAMPLED = 8192
"""Means of a segment whose main directions are taken."""
_AT_ONCE = 16_384
"""Passages sketched at once: a whole number of the blocks that sketches lie in."""
_SKETCHED_PER_CANDIDATE = 8
"""Passages that the sketches name for one candidate."""
_FEWEST_SKETCHED = 512
"""Passages that they name at least: to read so many means takes a tenth of a millisecond."""
_LEAST_SAMPLE, _MOST_APART = 8192, 64
"""Passages of the sample where there are so many, and how many there are at most for one of it."""
_DOUBT = 1.5
"""Standard deviations by which an estimate from half of the bits may be too low."""


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
        """Find the main directions of a sample of mean vectors, and sketch all of them."""
        rows = np.sort(np.random.default_rng(0).choice(len(means), min(len(means), _SAMPLED), replace=False))
        directions_HD = main_directions(means.decoded(rows))
        blocks = np.split(np.arange(len(means)), range(_AT_ONCE, len(means), _AT_ONCE))
        parts = [Sketches.of(means.decoded(rows) @ directions_HD) for rows in blocks]
        arrays = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("higher", "lower_PW", "factors_P")
        )
        return cls(directions_HD, Sketches(*arrays))

    def write(self, folder: Path) -> None:
        """Write a file for each array into a folder."""
        sketches = self.sketches
        arrays = (self.directions_HD, sketches.higher, sketches.lower_PW, sketches.factors_P)
        write_arrays(folder, _FILES, [dict(zip(_FILES, arrays, strict=True))])
        write_header(folder, passages=len(sketches))

    @classmethod
    def open(cls, folder: DerivedFolder, segment: Segment | None = None) -> Self | None:
        """Read the sketches in a folder into memory: searches read all of them, a third faster than from a mapped file.

        Raises:
            DamagedError: they cannot be read, or are not of the segment's passages.
        """
        held = folder.open()
        if held is None:
            return None
        try:
            count = read_header(held.folder)["passages"]
            arrays = {name: read_array(held.folder / f"{name}.bin", dtype) for name, dtype in _FILES.items()}
            higher = arrays["higher"].reshape(higher_shape(count))
            lower_PW = arrays["lower"].reshape(lower_shape(count))
            directions_HD, factors_P = arrays["directions"].reshape(-1, DIRECTIONS), arrays["factors"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{held.folder / SKETCHES} cannot be read ({error})") from error
        shape = (count, len(directions_HD)) if segment is None else segment.codes.means.codes_NH.shape
        if (len(factors_P), len(directions_HD)) != shape:
            raise DamagedError(f"{held.folder / SKETCHES} does not fit the codes beside it")
        return cls(directions_HD, Sketches(higher, lower_PW, factors_P))


def _sketches_of(segment: Segment) -> MeanSketches | None:
    return MeanSketches.open(segment.folder.below(SKETCHES), segment)


class CandidateIndex:
    """Proposes passages of one index version by the product of their mean vector with the query's.

    It never scores what is returned.
    """

    def __init__(self, segments: Sequence[Segment], sketches: Sequence[MeanSketches]) -> None:
        """`segments` are those that have sketches, and `sketches` are those of each."""
        self.passages = CodedPassages(segments)
        self._kept = sketches

    @classmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Sketch the segments of an index that have no sketches, or damaged ones."""
        total = sum(len(segment.codes) for segment in segments)
        for segment in track(segments, f"sketches → {index.uri}", "passages", total, lambda each: len(each.codes)):
            folder = segment.folder.below(SKETCHES)
            try:
                folder.check()
                is_whole = _sketches_of(segment) is not None
            except DamagedError:
                is_whole = False
            if not is_whole:
                with folder.build() as place:
                    MeanSketches.of(segment.codes.means).write(place)

    @classmethod
    def open(cls, segments: Sequence[Segment]) -> Self:
        """Open it over the segments that have sketches; a line in the log names damaged ones."""
        opened = for_all(segments[0].index.uri, segments, _sketches_of) if segments else []
        pairs = zip(segments, opened, strict=True)
        found = [(segment, kept) for segment, kept in pairs if kept is not None]
        return cls([segment for segment, _ in found], [kept for _, kept in found])

    @staticmethod
    def check(folder: DerivedFolder) -> None:
        """Compare the sketches in a fragment's codes, if there are some, with those that were written.

        Raises:
            DamagedError: they differ.
        """
        folder.below(SKETCHES).check()
        MeanSketches.open(folder.below(SKETCHES))

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return at most n passages a query as numbers into `passages`, int64 [C], most promising first, none twice."""
        means_QH = means_of(queries)
        coded = CodedQueries(means_QH, np.arange(len(means_QH) + 1))
        return [self._ranked(coded, query, n) for query in range(len(queries))]

    def _ranked(self, coded: CodedQueries, query: int, n: int) -> np.ndarray:
        mean_H = coded.vectors_MH[query]
        asked = [SketchedQuery.of(mean_H @ each.directions_HD) for each in self._kept]
        wanted = max(_FEWEST_SKETCHED, _SKETCHED_PER_CANDIDATE * n)
        chosen_C = self._sketched(asked, wanted, self._least(asked, wanted))
        if len(chosen_C) < min(wanted, self._n_live):
            chosen_C = self._sketched(asked, wanted, -np.inf)
        return chosen_C[highest(self.passages.mean_scores(coded, query, chosen_C), n)]

    def _sketched(self, asked: Sequence[SketchedQuery], wanted: int, least: float) -> np.ndarray:
        """Return the passages of the highest estimates, int64 [C] ascending; `least` as `Sketches.found` has it."""
        numbers, products = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for each, own, start, live_P in zip(self._kept, asked, self.passages.starts, self._live, strict=False):
            found = each.sketches.found(own, least, live_P)
            numbers.append(found.numbers_C + start)
            products.append(found.products_C)
        return np.sort(np.concatenate(numbers)[highest(np.concatenate(products), wanted)])

    def _least(self, asked: Sequence[SketchedQuery], wanted: int) -> float:
        """Return what the estimate from half of the bits must reach for a passage to be looked at further.

        The sample says how high estimates from all bits are of as many passages as are wanted, and how far off those
        from half of them are.
        """
        found = [
            sketches.found(own, -np.inf, live_S) for own, (sketches, live_S) in zip(asked, self._samples, strict=True)
        ]
        by_signs_S = np.concatenate([each.by_signs_C for each in found])
        products_S = np.concatenate([each.products_C for each in found])
        least = surely_reached(products_S, len(products_S) * wanted / max(1, self._n_live))
        if least == -np.inf:
            return least
        off_S = by_signs_S - products_S
        return least + float(off_S.mean() - _DOUBT * off_S.std())

    @cached_property
    def _live(self) -> list[np.ndarray]:
        """Which passages of each segment can be named."""
        return np.split(self.passages.live_P, self.passages.starts[1:-1])

    @cached_property
    def _n_live(self) -> int:
        return int(self.passages.live_P.sum())

    @cached_property
    def _samples(self) -> list[tuple[Sketches, np.ndarray]]:
        """Sketches of a sample of each segment's passages, and which of them can be named."""
        every = min(_MOST_APART, max(1, len(self.passages) // _LEAST_SAMPLE))
        rows = [np.arange(0, len(each.sketches), every) for each in self._kept]
        pairs = zip(self._kept, self._live, rows, strict=True)
        return [(each.sketches.take(own), live_P[own]) for each, live_P, own in pairs]


def means_of(queries: Representations) -> np.ndarray:
    """Return float32 [Q, H]: the mean of each query's vectors."""
    sums_QH = np.add.reduceat(queries.vectors_MH.astype(np.float32), queries.offsets[:-1])
    means: np.ndarray = sums_QH / np.diff(queries.offsets)[:, None].astype(np.float32)
    return means


def surely_reached(sample_S: np.ndarray, expected: float) -> float:
    """Return a score that the highest reach of which a sample is expected to hold so many, by three deviations.

    -inf, which all reach, where that would be the whole sample.
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

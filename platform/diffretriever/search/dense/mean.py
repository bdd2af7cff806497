"""Candidates by the mean of a passage's slot vectors: one product a passage in place of K_q times K_p.

Legend: Q queries, P passages of all segments, M query vectors, H hidden size, S a sample of the passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from diffretriever.artefacts.artefact import Artefact
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations
from diffretriever.schemas.accelerate import ProposerName
from diffretriever.scoring.maxsim import CodedQueries
from diffretriever.search.dense.codes import Segment
from diffretriever.search.dense.proposer import Proposer

_SCORES_AT_ONCE = 1 << 26
"""256 MiB of fp32."""
_SAMPLE = 16_384
"""Scores that are looked at to find out roughly which are high."""


class MeanProposer(Proposer):
    """Ranks passages by the inner product of their mean vector, in 8-bit codes, with the query's mean vector."""

    name: ClassVar[ProposerName] = "mean"
    content: ClassVar[str] = "means"

    @classmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Make nothing: the means are among the codes."""

    @classmethod
    def open(cls, index: PassageIndex, segments: Sequence[Segment]) -> Self:
        """Open it over all segments."""
        return cls(segments)

    @classmethod
    def check(cls, artefact: Artefact) -> None:
        """Read nothing: the means are among the codes."""

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return each query's n best passages by mean vectors."""
        at_once = max(1, _SCORES_AT_ONCE // max(1, len(self.passages)))
        means_QH = means_of(queries)
        best: list[np.ndarray] = []
        for start in range(0, len(queries), at_once):
            part_QH = means_QH[start : start + at_once]
            coded = CodedQueries.for_scan(part_QH, np.arange(len(part_QH) + 1))
            scores = [coded.scores(segment.codes.means) for segment in self.passages.segments]
            scores_QP = np.concatenate(scores, axis=1)
            scores_QP[:, ~self.passages.live_P] = -np.inf
            best += [highest(scores_P, n) for scores_P in scores_QP]
        return best


def means_of(queries: Representations) -> np.ndarray:
    """Return float32 [Q, H]: the mean of each query's vectors."""
    sums_QH = np.add.reduceat(queries.vectors_MH.astype(np.float32), queries.offsets[:-1])
    means: np.ndarray = sums_QH / np.diff(queries.offsets)[:, None].astype(np.float32)
    return means


def _enough(scores_P: np.ndarray, n: int) -> np.ndarray:
    """Return the numbers of n scores or more, the highest among them.

    Selecting among all scores would take as long as computing them: a sample says from where on to look.
    """
    every = len(scores_P) // _SAMPLE + 1
    sample_S, share = scores_P[::every], n / every
    enough = np.flatnonzero(scores_P >= surely_reached(sample_S, share))
    return enough if len(enough) >= n else np.arange(len(scores_P))


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
    candidates = np.arange(len(scores_P)) if len(scores_P) <= _SAMPLE else _enough(scores_P, n)
    if len(candidates) > n:
        candidates = candidates[np.argpartition(scores_P[candidates], len(candidates) - n)[len(candidates) - n :]]
    return candidates[np.argsort(-scores_P[candidates], kind="stable")]

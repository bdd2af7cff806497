"""Candidates by the mean of a passage's slot vectors: one product a passage in place of K_q times K_p.

Legend: Q queries, P passages of a segment, H hidden size.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from diffretriever.encoders.representations import Representations
from diffretriever.scoring.coded import CodedQueries
from diffretriever.search.dense.candidates import Proposer
from diffretriever.search.dense.segments import Segment


class MeanProposer(Proposer):
    """Ranks passages by the inner product of their mean vector, in 8-bit codes, with the query's mean vector."""

    name: ClassVar[str] = "mean"

    def __init__(self, segments: list[Segment]) -> None:
        self._means = [s.codes.means for s in segments]

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return each query's n best passages by mean vectors."""
        vectors_MH = queries.vectors_MH.astype(np.float32)
        counts_Q = np.diff(queries.offsets)
        means_QH = np.add.reduceat(vectors_MH, queries.offsets[:-1]) / counts_Q[:, None].astype(np.float32)
        coded = CodedQueries(means_QH, np.arange(len(queries) + 1))
        scores_QP = np.concatenate([coded.kernel_scores(means) for means in self._means], axis=1)
        return [_best(scores_P, n) for scores_P in scores_QP]


def _best(scores_P: np.ndarray, n: int) -> np.ndarray:
    """Return the n highest, most promising first."""
    if len(scores_P) > n:
        highest = np.argpartition(scores_P, len(scores_P) - n)[len(scores_P) - n :]
    else:
        highest = np.arange(len(scores_P))
    return highest[np.argsort(-scores_P[highest], kind="stable")]

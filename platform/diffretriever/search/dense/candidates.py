"""Search through a candidate index: something fast names passages, and only those are scored, exactly.

A candidate index never scores what is returned: its passages go through the 8-bit codes, and those that can be among
the best k of them through their stored vectors. Fragments that it does not know are scanned whole and merged, so new
passages are neither favoured nor hidden.

Legend: C candidates of a query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from diffretriever.encoders.representations import Representations, refuse_queries
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.coded import CodedQueries
from diffretriever.scoring.topk import Hits, TopK
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.coded import CodedPassages
from diffretriever.search.dense.codes import Segment
from diffretriever.search.dense.stream import StreamingScan
from schemas.accelerate import ProposerName


class Proposer(ABC):
    """A candidate index over segments of one index version."""

    name: ClassVar[ProposerName]

    def __init__(self, segments: Sequence[Segment]) -> None:
        """`segments` are those that the candidate index knows."""
        self.passages = CodedPassages(segments)

    @classmethod
    @abstractmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Make what the candidate index lacks to know all of an index's segments.

        Raises:
            ValueError: a passage's vectors hold NaN or infinity.
        """

    @classmethod
    @abstractmethod
    def open(cls, index: PassageIndex, segments: Sequence[Segment]) -> Self:
        """Open it over those of an index's segments that it knows."""

    @abstractmethod
    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return at most n passages a query as numbers into `passages`, int64 [C], most promising first, none twice."""


class CandidateSearch(DenseSearch):
    """Scores the `search_budget` passages that the proposer names."""

    is_exact: ClassVar[bool] = False

    def __init__(self, proposer: Proposer, unknown: list[Any], stream: StreamingScan, search_budget: int) -> None:
        """`unknown` are the fragments that the proposer does not know."""
        self.proposer = proposer
        self.search_budget = search_budget
        self._unknown = unknown
        self._stream = stream

    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages among the candidates and the fragments not known to the proposer."""
        refuse_queries(queries)
        self.proposer.passages.refuse_not_finite(self._stream.uri)
        best = TopK(len(queries), k)
        for fragment in self._unknown:
            self._stream.add_fragment(fragment, queries, best)
        coded = CodedQueries(queries.vectors_MH, queries.offsets)
        passages = self.proposer.passages
        proposals = self.proposer.propose(queries, max(k, self.search_budget))
        chosen = [passages.best_of(coded, query, np.sort(numbers_C), k) for query, numbers_C in enumerate(proposals)]
        passages.rescore(queries, chosen, best)
        return best.results()

"""The interface of candidate indexes: they name passages, and never score what is returned.

Legend: C candidates of a query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import ProposerName
from diffretriever.search.dense.coded import CodedPassages
from diffretriever.search.dense.codes import Segment


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

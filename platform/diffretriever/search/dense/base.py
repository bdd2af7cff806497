"""The dense search interface: encoded queries in, ranked passages with exact scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from diffretriever.encoders.representations import Representations
from diffretriever.scoring.topk import Hits


class DenseSearch(ABC):
    """Finds the best passages of one index version by mean MaxSim (paper Eq. 2).

    Ties are ranked by score descending, then by passage id ascending.
    """

    is_exact: ClassVar[bool]
    """Whether the best k are always found; scores are exact either way."""

    @abstractmethod
    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages as (id, fp32 score), best first.

        Raises:
            ValueError: a query, or a stored passage that is looked at, holds NaN or infinity; the message names it.
        """

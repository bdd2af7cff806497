"""The dense search interface: encoded queries in, ranked passages with exact scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from diffretriever.representations import Representations
from diffretriever.schemas.mode import Way
from diffretriever.scoring.hits import Hits


class DenseSearch(ABC):
    """Finds the best passages of one index version by their vectors: by mean MaxSim (paper Eq. 2) unless it says more.

    Ties are ranked by score descending, then by passage id ascending.
    """

    way: ClassVar[Way]
    """The name of the search method in the description of a server."""
    n_candidates: int | None = None
    """Passages that a candidate index proposes for each query, at least k; None: all passages are scored."""

    @abstractmethod
    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages as (id, fp32 score), best first.

        Raises:
            ValueError: a query, or a stored passage that is looked at, holds NaN or infinity; the message names it.
        """

"""The dense search interface: encoded queries in, ranked passages with exact scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from diffretriever.representations import Representations
from diffretriever.schemas.mode import Way
from diffretriever.scoring.hits import BoundedHits, Hits


class DenseSearch(ABC):
    """Finds the best passages of one index version by their vectors: by mean MaxSim (paper Eq. 2) unless it says more.

    Ties are ranked by score descending, then by passage id ascending.
    """

    way: ClassVar[Way]
    """What it is called where a server says how it finds passages."""
    is_exact: ClassVar[bool]
    """Whether the best k are always found; scores are exact either way."""
    n_candidates: int | None = None
    """Passages that a candidate index names for each query, more where more are asked for; None: all are looked at."""

    @abstractmethod
    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages as (id, fp32 score), best first.

        Raises:
            ValueError: a query, or a stored passage that is looked at, holds NaN or infinity; the message names it.
        """

    def search_bounds(self, queries: Representations, k: int) -> Hits | BoundedHits:
        """Return what `search` does, or the same passages with scores within bounds where these are sooner found.

        Enough to rank by weighted sums of several scores; raises as `search`.
        """
        return self.search(queries, k)

    def among(self, n_candidates: int) -> DenseSearch:
        """Return this search with at most so many candidates; itself where it has no more, or looks at all passages."""
        return self

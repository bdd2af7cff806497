"""Interface of dense and sparse search: encoded queries in, ranked passages with exact scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from diffretriever.schemas.mode import Way
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations


class EncodedSearch(ABC):
    """Finds the best passages of one index version: dense by mean MaxSim (paper Eq. 2), sparse by impacts (Eq. 3).

    Ties are ranked by score descending, then by passage id ascending. A sparse search does not retrieve a passage that
    shares no vocabulary entry with the query.
    """

    way: ClassVar[Way]
    """Name of the search method in a server's description."""
    n_candidates: int | None = None
    """Passages that a candidate index retrieves per query, at least k; None: all passages are scored."""

    @abstractmethod
    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages as (id, fp32 score), best first.

        Raises:
            ValueError: a stored passage contains NaN or infinity; the message names it. Encoders check queries.
        """

    def with_candidates(self, n_candidates: int) -> Self:
        """Return this search limited to `n_candidates` candidates per query; itself if that changes nothing."""
        return self

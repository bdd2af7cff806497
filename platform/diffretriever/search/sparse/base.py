"""The sparse search interface: encoded queries in, ranked passages with exact scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from diffretriever.representations import Representations
from diffretriever.schemas.mode import Way
from diffretriever.scoring.hits import Hits


class SparseSearch(ABC):
    """Finds the best passages of one index version by inner product of impacts (paper Eq. 3), exactly.

    A passage that shares no entry with the query is not retrieved. Ties are ranked by passage id ascending.
    """

    way: ClassVar[Way]
    """What it is called where a server says how it finds passages."""

    @abstractmethod
    def search(self, queries: Representations, k: int) -> Hits:
        """Return each query's best k passages as (id, score), best first.

        Raises:
            ValueError: a query, or a stored passage that is looked at, holds NaN or infinity; the message names it.
        """

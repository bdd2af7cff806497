"""The searcher interface: questions in, ranked passages out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diffretriever.index.filters import condition_of
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations
from diffretriever.schemas.base import suggest
from diffretriever.schemas.mode import EncodedList, ListName, Mode, unweighted
from diffretriever.schemas.serve import Explanation
from diffretriever.scoring.hits import BoundedHits, Hits

if TYPE_CHECKING:
    from diffretriever.search.dense.base import DenseSearch
    from diffretriever.search.sparse.base import SparseSearch

FILTERS_KEPT = 8
"""Filters whose searches stay open beside that of all passages: about 20 bytes a passage each."""


class Searcher(ABC):
    """Searches one version of an index.

    Ties are ranked by score descending, then by passage id ascending.
    """

    supports_budgets: bool = False
    """Whether queries may have their own K_q."""

    def __init__(self, index: PassageIndex) -> None:
        self.index = index

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The scores of the retriever, and what it is ranked by."""
        return self.index.manifest.retriever.reported_modes

    @property
    def default_mode(self) -> Mode:
        """The score to rank by where none is asked for."""
        return self.index.manifest.retriever.ranked_by

    def search(
        self,
        queries: Sequence[str],
        *,
        k: int = 1000,
        modes: Sequence[Mode] | None = None,
        budgets: Sequence[int] | None = None,
        filter: str | None = None,  # noqa: A002 (what everybody calls it)
    ) -> dict[Mode, Hits]:
        """Return, per mode, each query's best `k` passages, best first: `hits[i]` are (id, score) of query i.

        Args:
            queries: texts.
            k: passages kept per query.
            modes: scores wanted, of all that the index offers; None is those of its retriever.
            budgets: K_q of each query; None is the retriever's own.
            filter: condition that passages must meet, such as `year >= 2020 AND lang = 'en'`; see
                `diffretriever.index.filters`. Dense, sparse and BM25 scores stay; sums are of the lists that are left.

        Raises:
            ValueError: a mode the index does not offer, budgets for a retriever without slots, a text in place of a
                list of them, a query that is no valid Unicode, or a filter that cannot be understood.
        """
        wanted = tuple(modes) if modes is not None else self.modes
        check_modes(wanted, self.index.manifest.retriever.offered_modes, "this index")
        self._check_budget(has_budget=budgets is not None)
        _check_texts(queries)
        condition = None if filter is None else condition_of(filter, self.index.manifest.metadata)
        return self._search(queries, k, wanted, budgets, condition)

    def _check_budget(self, *, has_budget: bool) -> None:
        if has_budget and not self.supports_budgets:
            raise ValueError(f"the {self.index.manifest.retriever.method} method has no query budget")

    def explain(self, query: str, rows: np.ndarray, *, budget: int | None = None, words: int = 0) -> list[Explanation]:
        """Take the scores of passages for a query apart: slots that met, words in common (paper Eqs. 2 and 3).

        Args:
            query: a text.
            rows: int64, where in the index the passages are.
            budget: K_q; None is the retriever's own.
            words: how many words of the whole vocabulary to give for each slot, if the retriever's vectors are
                readable; 0: none.

        Raises:
            ValueError: the retriever encodes nothing, or a budget for one without, or fewer than no words.
        """
        self._check_budget(has_budget=budget is not None)
        if words < 0:
            raise ValueError(f"words must be at least 0, and is {words}")
        return self._explain(query, rows, budget, words)

    def _explain(self, query: str, rows: np.ndarray, budget: int | None, words: int) -> list[Explanation]:
        method = self.index.manifest.retriever.method
        raise ValueError(f"{method} encodes nothing: it goes by the words of texts, so there are no slots to explain")

    @abstractmethod
    def _search(
        self,
        queries: Sequence[str],
        k: int,
        modes: tuple[Mode, ...],
        budgets: Sequence[int] | None,
        condition: str | None,
    ) -> dict[Mode, Hits]: ...


def find_lists(
    searches: tuple[DenseSearch, SparseSearch],
    queries: Representations,
    names: Sequence[EncodedList],
    depth: int,
    *,
    bounds: bool,
) -> dict[ListName, Hits | BoundedHits]:
    """Return each query's best passages, best first, in each list.

    Args:
        searches: dense and sparse, of the same passages.
        queries: encoded.
        names: the lists.
        depth: passages of a query in each list.
        bounds: whether bounds of dense scores are enough.
    """
    dense, sparse = searches
    methods = {"dense": dense.search_bounds if bounds else dense.search, "sparse": sparse.search}
    return {name: methods[name](queries, depth) for name in names}


def check_modes(wanted: Sequence[Mode], offered: Sequence[Mode], index: str) -> None:
    """Raise `ValueError` for the first mode that an index does not offer; `index` is what the message calls it."""
    for mode in wanted:
        if unweighted(mode) not in offered:
            raise ValueError(f"{index} has no {mode} scores.{suggest(mode, offered)}")


def _check_texts(queries: Sequence[str]) -> None:
    if isinstance(queries, str):
        raise ValueError("queries: this is a single text: give a list of texts")
    for number, query in enumerate(queries):
        try:
            query.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"query number {number} holds a lone surrogate at character {error.start}, so it is no valid Unicode: "
                "decode it from UTF-8, or remove that character"
            ) from None

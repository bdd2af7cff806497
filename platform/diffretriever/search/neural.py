"""Search of an encoder's index: dense MaxSim, sparse impacts, BM25 of the texts, and sums of them (paper Eqs. 2-4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations
from diffretriever.schemas.mode import ListName, Mode
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import Explanation
from diffretriever.scoring.fusion import depth_for, encoded_lists_for, lists_for, ranked, takes_bounds
from diffretriever.scoring.hits import BoundedHits, Hits
from diffretriever.search.base import FILTERS_KEPT, Searcher, find_lists
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.explain import explain_each, parts_of_each
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.base import SparseSearch


class NeuralSearcher(Searcher):
    """Encodes the queries, then searches each of the scores wanted; every score returned is exact."""

    def __init__(self, index: PassageIndex, encoder: Encoder, options: SearchOptions) -> None:
        super().__init__(index)
        self.encoder = encoder
        self.options = options
        self.supports_budgets = encoder.config.has_query_budget
        self.dense = open_dense(index, options, encoder.facts.device)
        self.sparse = open_sparse(index, options)
        self._filtered = lru_cache(FILTERS_KEPT)(self._admitting)

    def _search(
        self,
        queries: Sequence[str],
        k: int,
        modes: tuple[Mode, ...],
        budgets: Sequence[int] | None,
        condition: str | None,
    ) -> dict[Mode, Hits]:
        lists: dict[ListName, Hits | BoundedHits] = {}
        if encoded_lists_for(modes):
            encoded = self.encoder.encode_queries(queries, budgets)
            lists.update(self._lists(encoded, k, modes, condition))
        if "bm25" in lists_for(modes):
            lists["bm25"] = self._bm25(condition).search(queries, depth_for(modes, k))
        return {mode: ranked(mode, lists, k) for mode in modes}

    def _explain(self, query: str, rows: np.ndarray, budget: int | None, words: int) -> list[Explanation]:
        encoded = self.encoder.encode_queries([query], None if budget is None else [budget])
        reads = words and self.encoder.config.is_readable
        read = partial(self.encoder.read, words=words) if reads else None
        preparer, passages = self.encoder.preparer, self.index.representations(rows)
        parts = parts_of_each(preparer, encoded, passages, query, self.index.shown(rows))
        return explain_each(encoded, passages, preparer.vocabulary.word, read, parts)

    def search_representations(self, queries: Representations, k: int, modes: Sequence[Mode]) -> dict[Mode, Hits]:
        """Search for queries that are encoded already, by modes without `bm25`, which goes by their texts."""
        lists = self._lists(queries, k, modes, None)
        return {mode: ranked(mode, lists, k) for mode in modes}

    @cached_property
    def bm25(self) -> Bm25Search:
        """BM25 of the index's texts, opened or built when it is first asked for."""
        return Bm25Search(self.index)

    def _bm25(self, condition: str | None) -> Bm25Search:
        return self.bm25 if condition is None else self.bm25.admitting(self._filtered(condition).part)

    def _lists(
        self, queries: Representations, k: int, modes: Sequence[Mode], condition: str | None
    ) -> dict[ListName, Hits | BoundedHits]:
        of_part = self if condition is None else self._filtered(condition)
        names, bounds = encoded_lists_for(modes), takes_bounds(modes, k)
        return find_lists((of_part.dense, of_part.sparse), queries, names, depth_for(modes, k), bounds=bounds)

    def _admitting(self, condition: str) -> _Filtered:
        part = IndexPart.filtered(self.index, condition)
        dense = open_dense(part, self.options, self.encoder.facts.device)
        return _Filtered(part, dense, open_sparse(part, self.options))


class _Filtered(NamedTuple):
    """The searches of the passages that a filter admits."""

    part: IndexPart
    dense: DenseSearch
    sparse: SparseSearch

"""Search of an index by dense MaxSim, sparse impacts, BM25 and their fusion (paper Eqs. 2-4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial

import numpy as np

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.preparer import Preparer
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.base import suggest
from diffretriever.schemas.documents import DocumentScore
from diffretriever.schemas.mode import ListName, Mode, unweighted
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import Explanation
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.dense import open_dense
from diffretriever.search.documents import Round, documents_of, search_condition, search_documents
from diffretriever.search.explain import explain_each, parts_of_each
from diffretriever.search.sparse import open_sparse
from diffretriever.vectors.documents import Documents
from diffretriever.vectors.fusion import depth_for, lists_for, ranked
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

FILTERS_KEPT = 8
"""Number of filters whose searches stay open, at about 20 bytes per passage each."""


class Searcher:
    """Searches one version of an index. Every score is exact.

    Ties are ranked by score descending, then by passage id ascending.
    """

    def __init__(self, index: PassageIndex, options: SearchOptions, encoder: Encoder | None = None) -> None:
        """Open the index with its encoder; None for a BM25 index."""
        self.index = index
        self.encoder = encoder
        self._options = options
        self._whole = None if encoder is None else _Encoded(index, options, encoder)
        self._filtered = lru_cache(FILTERS_KEPT)(partial(IndexPart.filtered, index))
        self._encoded_of = lru_cache(FILTERS_KEPT)(self._open_encoded)
        self._bm25_of = lru_cache(FILTERS_KEPT)(self._open_bm25)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The retriever's scoring modes, including its default."""
        return self.index.manifest.retriever.reported_modes

    @property
    def default_mode(self) -> Mode:
        """The scoring mode that ranks if you select none."""
        return self.index.manifest.retriever.ranked_by

    @property
    def preparer(self) -> Preparer | None:
        """The encoder's preparer; None for a BM25 index."""
        return None if self.encoder is None else self.encoder.preparer

    @cached_property
    def bm25(self) -> Bm25Search:
        """BM25 search of the index's texts, opened or built on first use."""
        return Bm25Search(self.index)

    @cached_property
    def _documents(self) -> Documents:
        return documents_of(self.index.order)

    def search(
        self,
        queries: Sequence[str],
        *,
        k: int = 1000,
        modes: Sequence[Mode] | None = None,
        budgets: Sequence[int] | None = None,
        filter: str | None = None,  # noqa: A002 (what everybody calls it)
        documents: DocumentScore | None = None,
    ) -> dict[Mode, Hits]:
        """Return, per mode, each query's best `k` passages, best first: `hits[i]` are (id, score) of query i.

        Args:
            queries: texts.
            k: passages kept per query.
            modes: scores to rank by. Default: the retriever's.
            budgets: K_q of each query. Default: the retriever's.
            filter: condition on metadata, such as `year >= 2020 AND lang = 'en'`; see `diffretriever.index.filters`.
                Dense, sparse and BM25 scores do not change; fusion uses the filtered result lists.
            documents: rank documents by the scores of their chunks, in place of passages; see `DocumentScore`. Sums
                score documents from the fused list of chunks.

        Raises:
            ValueError: the index does not offer a mode, the retriever has no slots for `budgets`, `queries` is a single
                text, a query is not valid Unicode, or the filter or `documents` is invalid.
        """
        self._check_budget(has_budget=budgets is not None)
        _check_texts(queries)
        requested = tuple(modes) if modes is not None else self.modes
        check_modes(requested, self.index.manifest.retriever.offered_modes, "this index")
        condition = search_condition(filter, self.index.manifest.metadata, documents)
        encoded = None
        if self.encoder is not None and lists_for(requested) != ("bm25",):
            encoded = self.encoder.encode_queries(queries, budgets)
        search = partial(self._ranked, queries, encoded, requested, condition)
        if documents is None:
            return search(Round(0, len(queries), k))
        searched = self._documents
        if condition is not None:
            searched = searched.among(self._filtered(condition).order.by_row)
        return search_documents(search, len(queries), searched, documents, k)

    def _ranked(
        self,
        queries: Sequence[str],
        encoded: Representations | None,
        modes: Sequence[Mode],
        condition: str | None,
        searched: Round,
    ) -> dict[Mode, Hits]:
        queries = queries[searched.start : searched.stop]
        if self.encoder is None:
            return dict.fromkeys(modes, self._bm25(condition).search(queries, searched.depth))
        names, depth, lists = lists_for(modes), depth_for(modes, searched.depth), dict[ListName, Hits]()
        if encoded is not None:
            searches = self._whole if condition is None else self._encoded_of(condition)
            assert searches is not None, "there is an encoder"
            if len(queries) < len(encoded):
                encoded = encoded.take(np.arange(searched.start, searched.stop))
            if "dense" in names:
                lists["dense"] = searches.dense.search(encoded, depth)
            if "sparse" in names:
                lists["sparse"] = searches.sparse.search(encoded, depth)
        if "bm25" in names:
            lists["bm25"] = self._bm25(condition).search(queries, depth)
        return {mode: ranked(mode, lists, searched.depth) for mode in modes}

    def explain(self, query: str, rows: np.ndarray, *, budget: int | None = None, words: int = 0) -> list[Explanation]:
        """Explain passages' scores for a query by matched slots and common terms (paper Eqs. 2 and 3).

        Args:
            query: a text.
            rows: int64, rows of the passages in the index.
            budget: K_q. Default: the retriever's.
            words: vocabulary tokens to show per slot, if the retriever's vectors are readable.

        Raises:
            ValueError: the retriever has no encoder or, for `budget`, no slots; or `words` is negative.
        """
        self._check_budget(has_budget=budget is not None)
        if words < 0:
            raise ValueError(f"words must be at least 0, and is {words}")
        if self.encoder is None:
            method = self.index.manifest.retriever.method
            raise ValueError(
                f"{method} encodes nothing: it goes by the words of texts, so there are no slots to explain"
            )
        encoded = self.encoder.encode_queries([query], None if budget is None else [budget])
        read = partial(self.encoder.read, words=words) if words and self.encoder.config.is_readable else None
        preparer, passages = self.encoder.preparer, self.index.representations(rows)
        parts = parts_of_each(preparer, encoded, passages, query, self.index.shown(rows))
        return explain_each(encoded, passages, preparer.vocabulary.word, read, parts)

    def _check_budget(self, *, has_budget: bool) -> None:
        if has_budget and (self.encoder is None or not self.encoder.config.has_query_budget):
            raise ValueError(f"the {self.index.manifest.retriever.method} method has no query budget")

    def _bm25(self, condition: str | None) -> Bm25Search:
        return self.bm25 if condition is None else self._bm25_of(condition)

    def _open_bm25(self, condition: str) -> Bm25Search:
        return self.bm25.admitting(self._filtered(condition))

    def _open_encoded(self, condition: str) -> _Encoded:
        assert self.encoder is not None, "there is an encoder"
        return _Encoded(self._filtered(condition), self._options, self.encoder)


class _Encoded:
    """Dense and sparse search of an index, or of its filtered passages."""

    def __init__(self, index: PassageIndex, options: SearchOptions, encoder: Encoder) -> None:
        self.dense = open_dense(index, options, encoder.facts.device)
        self.sparse = open_sparse(index, options)


def check_modes(wanted: Sequence[Mode], offered: Sequence[Mode], index: str) -> None:
    """Raise `ValueError` for the first mode that an index does not offer; the message calls it `index`."""
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

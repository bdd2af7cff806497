"""State of a search request, and the parts of its response: passages, scores, explanations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from diffretriever.encoders.preparer import PreparedText, Preparer
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.serve import (
    BudgetUsed,
    EncodedQuery,
    EncodedSlot,
    Explanation,
    QueryResult,
    Reading,
    SearchHit,
    SearchRequest,
)
from diffretriever.search.explain import NameWord, explain_each, parts_of_each, slot_words, terms
from diffretriever.serving.backend import Lists
from diffretriever.serving.load import Caps
from diffretriever.serving.snapshots import SearchSpec, Version, View
from diffretriever.vectors.fusion import FUSION_DEPTH, depth_for, encoded_lists_for, lists_for
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations


@dataclass(slots=True)
class Search:
    """A validated search request, with the results of each step."""

    request: SearchRequest
    texts: list[str]
    view: View
    """Version of the index that it searches."""
    mode: Mode
    condition: str | None
    """Filter in Lance's SQL; None: all passages."""
    caps: Caps
    """Caps by load; `candidates` is None if that cap has no effect."""
    began: float = field(default_factory=time.perf_counter)
    budgets: list[BudgetUsed] = field(init=False)
    prepared: list[PreparedText] = field(init=False)
    queries: Representations = field(init=False)
    lists: Lists = field(init=False)
    missing_shards: tuple[int, ...] = ()
    """Shards that did not respond."""
    ranking: Hits = field(init=False)

    @property
    def fusion_depth(self) -> int:
        """Passages of each list that are fused."""
        return min(FUSION_DEPTH, self.caps.candidates or FUSION_DEPTH)

    @property
    def spec(self) -> SearchSpec:
        """Result lists to search with encoded queries."""
        modes, k = [self.mode], self.request.k
        depth, lists = depth_for(modes, k, self.fusion_depth), encoded_lists_for(modes)
        return SearchSpec(self.view.version, lists, depth, self.condition, self.caps.candidates)


def with_bm25(search: Search, lists: Lists) -> Lists:
    """Add the BM25 list if the search's mode needs it."""
    if "bm25" not in lists_for([search.mode]):
        return lists
    order = search.view.index.order
    hits = search.view.bm25(search.condition).search(search.texts, search.spec.depth)
    return {**{name: order.renumbered(encoded) for name, encoded in lists.items()}, "bm25": hits}


def passages_of(searches: Sequence[Search]) -> dict[Version, dict[int, dict[str, Any]]]:
    """Return the fields of the ranked passages, by version and row; reads each version once."""
    rows: dict[Version, list[np.ndarray]] = {}
    views = {search.view.version: search.view for search in searches}
    for search in searches:
        rows.setdefault(search.view.version, []).append(search.ranking.rows())
    return {version: views[version].passages(np.unique(np.concatenate(parts))) for version, parts in rows.items()}


def query_results(
    search: Search, passages: Mapping[int, dict[str, Any]], explained: list[Explanation] | None
) -> list[QueryResult]:
    """Return the ranking of each query, with the fields of passages by row, and explanations."""
    ranking = search.ranking
    rows, names, values = ranking.rows().tolist(), ranking.names(), ranking.scores_F.tolist()
    columns = {name: scores_in(hits, ranking) for name, hits in search.lists.items()}
    results = []
    for text, budget, (start, end) in zip(
        search.texts, search.budgets, pairwise(ranking.offsets.tolist()), strict=True
    ):
        hits = [
            SearchHit(
                rank=position - start + 1,
                id=names[position],
                score=values[position],
                scores={search.mode: values[position], **{name: column[position] for name, column in columns.items()}},
                explanation=explained[position] if explained else None,
                **passages[rows[position]],
            )
            for position in range(start, end)
        ]
        results.append(QueryResult(query=text, budget=budget, hits=hits))
    return results


def scores_in(result_list: Hits, ranking: Hits) -> list[float | None]:
    """Return the score of every hit of a ranking in a result list; None for missing hits."""
    scores: list[float | None] = []
    for query, numbers_F in enumerate(np.split(ranking.numbers_F, ranking.offsets[1:-1])):
        hits = result_list[query : query + 1]
        positions = np.flatnonzero(np.isin(hits.numbers_F, numbers_F))
        known = dict(zip(hits.numbers_F[positions].tolist(), hits.scores_F[positions].tolist(), strict=True))
        scores += [known.get(number) for number in numbers_F.tolist()]
    return scores


def explanations(
    search: Search,
    passages: Mapping[int, dict[str, Any]],
    preparer: Preparer,
    tokenizer: threading.Lock,
    read: Callable[[np.ndarray, int], list[Reading]],
) -> list[Explanation]:
    """Explain every hit of all queries of a search.

    Args:
        search: search with its best passages.
        passages: fields of each passage, by row.
        preparer: preparer of the encoder.
        tokenizer: lock of the preparer.
        read: returns the tokens that vectors predict.
    """
    words = search.request.words
    reads = (lambda vectors_MH: read(vectors_MH, words)) if words else None
    rows, positions = np.unique(search.ranking.rows(), return_inverse=True)
    stored = search.view.index.representations(rows)
    explained: list[Explanation] = []
    for number, (start, end) in enumerate(pairwise(search.ranking.offsets.tolist())):
        if start < end:
            query, matches = search.queries.take(np.array([number])), stored.take(positions[start:end])
            texts = [passages[row] for row in rows[positions[start:end]].tolist()]
            with tokenizer:
                parts = parts_of_each(preparer, query, matches, search.texts[number], texts)
            explained += explain_each(query, matches, preparer.vocabulary.word, reads, parts)
    return explained


def encoded_query(text: str, budget: BudgetUsed, encoded: Representations, name: NameWord) -> EncodedQuery:
    """Return one query's representations for `POST /encode`; `name` returns the text of a vocabulary entry."""
    slots = [
        EncodedSlot(words=words, vector=vector.tolist())
        for words, vector in zip(slot_words(encoded, name), encoded.vectors_MH.astype(np.float64), strict=True)
    ]
    return EncodedQuery(query=text, budget=budget, slots=slots, terms=terms(encoded, name))

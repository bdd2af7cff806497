"""A search request on its way through a service, and the parts of its response: passages, scores, explanations."""

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
from diffretriever.serving.backend import Found
from diffretriever.serving.load import Caps
from diffretriever.serving.snapshots import SearchSpec, Version, View
from diffretriever.vectors.fusion import FUSION_DEPTH, depth_for, encoded_lists_for, lists_for
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations


@dataclass(slots=True)
class Search:
    """A search request that has been checked, and the results of each step."""

    request: SearchRequest
    texts: list[str]
    view: View
    """The version that answers."""
    mode: Mode
    condition: str | None
    """The filter; None where it admits all passages."""
    caps: Caps
    """The most that the request is given; `candidates` is None where a cap has no effect."""
    began: float = field(default_factory=time.perf_counter)
    budgets: list[BudgetUsed] = field(init=False)
    prepared: list[PreparedText] = field(init=False)
    queries: Representations = field(init=False)
    found: Found = field(init=False)
    missing: tuple[int, ...] = ()
    """Shards that did not answer."""
    best: Hits = field(init=False)

    @property
    def fusion_depth(self) -> int:
        """Passages of each list that take part in a sum."""
        return min(FUSION_DEPTH, self.caps.candidates or FUSION_DEPTH)

    @property
    def spec(self) -> SearchSpec:
        """The lists to search for with encoded queries."""
        modes, k = [self.mode], self.request.k
        depth, lists = depth_for(modes, k, self.fusion_depth), encoded_lists_for(modes)
        return SearchSpec(self.view.version, lists, depth, self.condition, self.caps.candidates)


def with_bm25(search: Search, found: Found) -> Found:
    """Return the lists of encoded queries, and that of BM25 if the mode of the search needs it."""
    if "bm25" not in lists_for([search.mode]):
        return found
    order = search.view.index.order
    hits = search.view.bm25(search.condition).search(search.texts, search.spec.depth)
    return {**{name: order.renumbered(own) for name, own in found.items()}, "bm25": hits}


def shown_passages(searches: Sequence[Search]) -> dict[Version, dict[int, dict[str, Any]]]:
    """Return the fields of all passages to show, by version and row: one read for each version."""
    rows: dict[Version, list[np.ndarray]] = {}
    views = {search.view.version: search.view for search in searches}
    for search in searches:
        rows.setdefault(search.view.version, []).append(search.best.rows())
    return {version: views[version].shown(np.unique(np.concatenate(own))) for version, own in rows.items()}


def query_results(
    search: Search, shown: Mapping[int, dict[str, Any]], explained: list[Explanation] | None
) -> list[QueryResult]:
    """Return the ranking of each query of a search, with the fields `shown` of each row and its explanations."""
    best = search.best
    rows, names, values = best.rows().tolist(), best.names(), best.scores_F.tolist()
    columns = {name: scores_in(found, best) for name, found in search.found.items()}
    results = []
    for text, budget, (start, end) in zip(search.texts, search.budgets, pairwise(best.offsets.tolist()), strict=True):
        hits = [
            SearchHit(
                rank=place - start + 1,
                id=names[place],
                score=values[place],
                scores={search.mode: values[place], **{name: column[place] for name, column in columns.items()}},
                explanation=explained[place] if explained else None,
                **shown[rows[place]],
            )
            for place in range(start, end)
        ]
        results.append(QueryResult(query=text, budget=budget, hits=hits))
    return results


def scores_in(found: Hits, best: Hits) -> list[float | None]:
    """Return the score of every hit of `best` in the list `found`, in its order; None for hits that are not in it."""
    scores: list[float | None] = []
    for query, numbers_F in enumerate(np.split(best.numbers_F, best.offsets[1:-1])):
        own = found[query : query + 1]
        places = np.flatnonzero(np.isin(own.numbers_F, numbers_F))
        known = dict(zip(own.numbers_F[places].tolist(), own.scores_F[places].tolist(), strict=True))
        scores += [known.get(number) for number in numbers_F.tolist()]
    return scores


def explanations(
    search: Search,
    shown: Mapping[int, dict[str, Any]],
    preparer: Preparer,
    tokenizer: threading.Lock,
    read: Callable[[np.ndarray, int], list[Reading]],
) -> list[Explanation]:
    """Explain every hit of all queries of a search.

    Args:
        search: with its best passages.
        shown: the fields of each passage, by row.
        preparer: of the encoder.
        tokenizer: lock of the preparer.
        read: returns the words that vectors predict.
    """
    words = search.request.words
    reads = (lambda vectors_MH: read(vectors_MH, words)) if words else None
    rows, places = np.unique(search.best.rows(), return_inverse=True)
    stored = search.view.index.representations(rows)
    found: list[Explanation] = []
    for number, (start, end) in enumerate(pairwise(search.best.offsets.tolist())):
        if start < end:
            query, passages = search.queries.take(np.array([number])), stored.take(places[start:end])
            texts = [shown[row] for row in rows[places[start:end]].tolist()]
            with tokenizer:
                parts = parts_of_each(preparer, query, passages, search.texts[number], texts)
            found += explain_each(query, passages, preparer.vocabulary.word, reads, parts)
    return found


def encoded_query(text: str, budget: BudgetUsed, encoded: Representations, name: NameWord) -> EncodedQuery:
    """Return one query's representations as `POST /encode` responds with them.

    Args:
        text: the query.
        budget: its K_q.
        encoded: its representations.
        name: returns the text of a vocabulary entry.
    """
    slots = [
        EncodedSlot(words=words, vector=vector.tolist())
        for words, vector in zip(slot_words(encoded, name), encoded.vectors_MH.astype(np.float64), strict=True)
    ]
    return EncodedQuery(query=text, budget=budget, slots=slots, terms=terms(encoded, name))

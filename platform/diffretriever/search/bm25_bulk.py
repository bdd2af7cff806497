"""BM25 for many queries: the scores and the ranking of `Bm25Searcher`, by one compiled loop over a block of queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffretriever.index.table import PassageIndex
from diffretriever.kernels.term_scores import best_passages
from diffretriever.scoring.topk import Hits
from diffretriever.search.bm25 import Bm25Searcher, analyse
from schemas.retriever_parts import Mode


class BulkBm25Searcher(Bm25Searcher):
    """Takes some 100 µs a query over 20,000 passages, where asking for one at a time takes milliseconds."""

    def __init__(self, index: PassageIndex) -> None:
        super().__init__(index)
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        self._places_D = np.empty(len(order), np.int64)
        self._places_D[order] = np.arange(len(order))

    def _search(
        self, queries: Sequence[str], top_k: int, modes: tuple[Mode, ...], budgets: Sequence[int] | None
    ) -> dict[Mode, Hits]:
        if not self._ids:
            return {mode: [[] for _ in queries] for mode in modes}
        known = self._model.vocab_dict
        terms = [[known[word] for word in words if word in known] for words in analyse(queries)]
        offsets_Q = np.cumsum([0, *map(len, terms)])
        terms_T = np.array([term for each in terms for term in each], np.int64)
        stored = self._model.scores
        matrix = (np.asarray(stored["indptr"]), np.asarray(stored["indices"]), np.asarray(stored["data"]))
        kept_QK = np.empty((len(terms), min(top_k, len(self._ids))), np.int64)
        scores_QK = np.empty(kept_QK.shape, np.float32)
        best_passages(matrix, (offsets_Q, terms_T), self._places_D, kept_QK, scores_QK)
        hits = [self._hits(*pair) for pair in zip(kept_QK, scores_QK, strict=True)]
        return dict.fromkeys(modes, hits)

    def _hits(self, kept_K: np.ndarray, scores_K: np.ndarray) -> list[tuple[str, float]]:
        n = int(np.count_nonzero(kept_K >= 0))
        return [(self._ids[i], score) for i, score in zip(kept_K[:n].tolist(), scores_K[:n].tolist(), strict=True)]

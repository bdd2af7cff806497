"""Search of an encoder's index: dense MaxSim, sparse impacts and their hybrid (paper Eqs. 2-4)."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.fusion import hybrid
from diffretriever.scoring.topk import Hits
from diffretriever.search.base import Searcher
from diffretriever.search.dense import open_dense
from diffretriever.search.sparse import open_sparse
from schemas.retriever import Mode
from schemas.search import SearchOptions

FUSION_DEPTH = 1000


class NeuralSearcher(Searcher):
    """Encodes the queries, then searches each of the scores wanted; every score returned is exact."""

    def __init__(self, index: PassageIndex, encoder: Encoder, options: SearchOptions) -> None:
        super().__init__(index)
        self.encoder = encoder
        self.options = options
        self.supports_budgets = encoder.config.has_query_budget
        self.dense = open_dense(index, options, encoder.facts.device)
        self.sparse = open_sparse(index, options)

    def _search(
        self, queries: Sequence[str], top_k: int, modes: tuple[Mode, ...], budgets: Sequence[int] | None
    ) -> dict[Mode, Hits]:
        return self.search_representations(self.encoder.encode_queries(queries, budgets), top_k, modes)

    def search_representations(self, queries: Representations, top_k: int, modes: Sequence[Mode]) -> dict[Mode, Hits]:
        """Search for queries that are encoded already."""
        depth = max(top_k, FUSION_DEPTH) if "hybrid" in modes else top_k
        dense = self.dense.search(queries, depth) if {"dense", "hybrid"} & set(modes) else []
        sparse = self.sparse.search(queries, depth) if {"sparse", "hybrid"} & set(modes) else []
        return {mode: ranked(mode, dense, sparse, top_k) for mode in modes}


def ranked(mode: Mode, dense: Hits, sparse: Hits, top_k: int) -> Hits:
    """Return each query's best passages by one score, from its dense and its sparse list.

    Args:
        mode: the score; a list that it does not use may be empty.
        dense: per query, the best passages; for hybrid at least `FUSION_DEPTH` of them, if there are so many.
        sparse: likewise.
        top_k: passages kept.
    """
    if mode == "hybrid":
        pairs = zip(dense, sparse, strict=True)
        return [hybrid(dict(d), dict(s), top_k, depth=FUSION_DEPTH) for d, s in pairs]
    return [hits[:top_k] for hits in (dense if mode == "dense" else sparse)]

"""Search of an encoder's index: dense MaxSim, sparse impacts and their hybrid (paper Eqs. 2-4)."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.fusion import ListName, depth_for, lists_for, ranked
from diffretriever.scoring.hits import Hits
from diffretriever.search.base import Searcher
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.base import SparseSearch
from schemas.retriever import Mode
from schemas.search import SearchOptions


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
        searches: dict[ListName, DenseSearch | SparseSearch] = {"dense": self.dense, "sparse": self.sparse}
        depth = depth_for(modes, top_k)
        lists = {name: searches[name].search(queries, depth) for name in lists_for(modes)}
        return {mode: ranked(mode, lists, top_k) for mode in modes}

"""A PyTerrier transformer from queries to ranked passages, for its operators and experiments.

    dense = PyTerrierRetriever("demo/indexes/diffretriever-minilm", mode="dense")
    bm25 = PyTerrierRetriever("demo/indexes/diffretriever-minilm", mode="bm25")
    (0.7 * dense + 0.3 * bm25) % 10

Needs Java only if another part of the pipeline is Terrier's.
"""

from __future__ import annotations

import os

import numpy as np
import pandas as pd

from diffretriever.front.index import Index
from diffretriever.schemas.mode import Mode

try:
    import pyterrier as pt
except ImportError as error:
    raise ImportError("PyTerrier is not installed: pip install 'diffretriever[pyterrier]'") from error


class PyTerrierRetriever(pt.Transformer):
    """Searches an index.

    Attributes:
        index: an open index, or its path or URI.
        mode: score to rank by, such as `dense` or `dense+bm25`. Default: the index's.
        k: number of passages per query.
        budget: number of query slots, K_q. Default: the retriever's.
    """

    def __init__(
        self,
        index: Index | str | os.PathLike[str],
        *,
        mode: Mode | None = None,
        k: int = 1000,
        budget: int | None = None,
    ) -> None:
        """Open the index; the first search loads the weights. Raises ValueError if there is no index."""
        if k < 1:
            raise ValueError(f"k must be at least 1, and is {k}")
        super().__init__()
        self.index = index if isinstance(index, Index) else Index(index)
        self.mode = mode
        self.k = k
        self.budget = budget

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search for queries: rows with `qid`, `query` and any other columns except `docno`.

        Returns:
            The columns of `inp` with `docno`, `score` and `rank`: one row per passage, best first, ranks from 0.

        Raises:
            pyterrier.validate.InputValidationError: a column is missing, or there is a `docno`.
            ValueError: the index lacks this score, or the retriever has no slots.
        """
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        columns = [*dict.fromkeys(["qid", "query", *pt.model.query_columns(inp)])]
        texts = [str(text) for text in inp["query"]]
        if not texts:
            return inp[columns].assign(
                docno=pd.Series(dtype=str), score=pd.Series(dtype=float), rank=pd.Series(dtype=int)
            )
        mode = self.mode or self.index.searcher.default_mode
        budgets = None if self.budget is None else [self.budget] * len(texts)
        hits = self.index.searcher.search(texts, k=self.k, modes=[mode], budgets=budgets)[mode]
        queries_F = hits.queries()
        ranks_F = np.arange(len(queries_F)) - hits.offsets[queries_F] + pt.model.FIRST_RANK
        results = inp[columns].iloc[queries_F].reset_index(drop=True)
        return results.assign(docno=hits.names(), score=hits.scores_F, rank=ranks_F)

    def fuse_rank_cutoff(self, k: int) -> PyTerrierRetriever:
        """Return the transformer that equals `self % k`, for PyTerrier's `compile`."""
        return PyTerrierRetriever(self.index, mode=self.mode, k=min(k, self.k), budget=self.budget)

"""Exact search: every stored vector is scored in fp32, streamed from disk in bounded memory.

Legend: Q queries, P passages of a batch, M query vectors, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import Representations, read_impacts, read_vectors
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.fusion import hybrid
from diffretriever.scoring.maxsim import maxsim
from diffretriever.scoring.sparse import impact_matrix, sparse_scores
from diffretriever.scoring.topk import TopK
from diffretriever.search.base import Hits, Searcher
from schemas.jobs import SearchOptions
from schemas.retriever import MaskedRetriever
from schemas.retriever_parts import Mode

FUSION_DEPTH = 1000
_MAX_BATCH_ROWS = 16384
_DENSE_COLUMNS = ("reps",)
_SPARSE_COLUMNS = ("impact_ids", "impact_weights")


class ExactSearcher(Searcher):
    """Dense MaxSim, sparse impacts and their hybrid (paper Eqs. 2-4), one pass over the table for all queries."""

    def __init__(self, index: PassageIndex, encoder: Encoder, options: SearchOptions) -> None:
        super().__init__(index)
        self.supports_budgets = isinstance(encoder.config, MaskedRetriever)
        self.encoder = encoder
        self.options = options

    def _search(
        self, queries: Sequence[str], top_k: int, modes: tuple[Mode, ...], budgets: Sequence[int] | None
    ) -> dict[Mode, Hits]:
        return self.search_representations(self.encoder.encode_queries(queries, budgets), top_k, modes)

    def search_representations(self, queries: Representations, top_k: int, modes: Sequence[Mode]) -> dict[Mode, Hits]:
        """Search for queries that are encoded already."""
        depth = max(top_k, FUSION_DEPTH) if "hybrid" in modes else top_k
        dense = TopK(len(queries), depth) if {"dense", "hybrid"} & set(modes) else None
        sparse = TopK(len(queries), depth, only_positive=True) if {"sparse", "hybrid"} & set(modes) else None
        self._scan(queries, dense, sparse)
        dense_hits = dense.results() if dense else []
        sparse_hits = sparse.results() if sparse else []
        results: dict[Mode, Hits] = {}
        for mode in modes:
            if mode == "dense":
                results[mode] = [hits[:top_k] for hits in dense_hits]
            elif mode == "sparse":
                results[mode] = [hits[:top_k] for hits in sparse_hits]
            else:
                pairs = zip(dense_hits, sparse_hits, strict=True)
                results[mode] = [hybrid(dict(d), dict(s), top_k, depth=FUSION_DEPTH) for d, s in pairs]
        return results

    def _scan(self, queries: Representations, dense: TopK | None, sparse: TopK | None) -> None:
        columns = ["id", *(_DENSE_COLUMNS if dense else ()), *(_SPARSE_COLUMNS if sparse else ())]
        vocab_size = self.index.manifest.vocab_size or 0
        query_matrix = impact_matrix(queries.impact_ids, queries.impact_weights, queries.impact_offsets, vocab_size)
        query_vectors_MH = torch.from_numpy(queries.vectors_MH.astype(np.float32)).to(self.encoder.facts.device)
        for batch in self.index.batches(columns, self._batch_rows(queries)):
            ids = batch.column("id").to_pylist()
            if dense:
                dense.add(self._dense_scores(query_vectors_MH, queries.offsets, batch), ids)
            if sparse:
                passages = impact_matrix(*read_impacts(batch), vocab_size)
                sparse.add(sparse_scores(query_matrix, passages).toarray(), ids)

    def _dense_scores(
        self, query_vectors_MH: torch.Tensor, query_offsets: np.ndarray, batch: pa.RecordBatch
    ) -> np.ndarray:
        vectors_NH, offsets = read_vectors(batch)
        scores_QP = maxsim(
            query_vectors_MH,
            query_offsets,
            torch.from_numpy(vectors_NH.astype(np.float32)).to(query_vectors_MH.device),
            offsets,
            reduction=self.options.maxsim,
            score_dtype=self.options.score_dtype,
        )
        scores: np.ndarray = scores_QP.cpu().numpy()
        return scores

    def _batch_rows(self, queries: Representations) -> int:
        """Passages scored at once, from the memory that their vectors and products take."""
        slots = self.encoder.config.max_vectors("passage")
        per_vector = queries.hidden_size * 6 + len(queries.vectors_MH) * 4
        per_row = slots * per_vector + len(queries) * 16
        return max(1, min(_MAX_BATCH_ROWS, (self.options.memory_mb << 20) // per_row))

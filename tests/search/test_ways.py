"""Averaged slots, and dense search of a BM25 index."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense.averaged import AveragedSlots
from tests.search.conftest import QUERIES
from tests.search.dense_cases import CPU, opened


def test_averaged_slots_score_a_pair_the_same_in_any_batch(index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    search = AveragedSlots(index, SearchOptions(index=index.uri), CPU)
    together = search.search(queries, 60)
    assert [len(hits) for hits in together] == [60] * len(QUERIES)
    for number, hits in enumerate(together):
        assert search.search(queries.take(np.array([number])), 60) == [hits]
        assert search.search(queries.take(np.array([number])), 5) == [hits[:5]]


def test_dense_search_of_a_bm25_index_is_rejected(bm25_index: PassageIndex) -> None:
    assert isinstance(bm25_index.manifest.retriever, Bm25Retriever)
    with pytest.raises(ValueError, match="bm25 method and has no vectors"):
        opened(bm25_index)

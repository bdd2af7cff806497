"""The ways to search an index: each has a name of its own, and averaged slots keep the promise of equal scores."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import Way
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.search.dense.averaged import AveragedSlots
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.compressed import CompressedScan
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.sparse.postings import PostingsSearch
from diffretriever.search.sparse.stream import StreamingImpacts
from tests.search.conftest import QUERIES
from tests.search.dense_cases import opened

ways: TypeAdapter[str] = TypeAdapter(Way)


def test_every_search_names_its_own_way() -> None:
    dense = (CandidateSearch, CodedScan, CompressedScan, StreamingScan, AveragedSlots)
    for searches in (dense, (PostingsSearch, StreamingImpacts)):
        names = [ways.validate_python(search.way) for search in searches]
        assert len(set(names)) == len(names)
    with pytest.raises(ValidationError):
        ways.validate_python("By Magic")


def test_averaged_slots_score_a_pair_the_same_in_any_company(index: PassageIndex, encoder: Encoder) -> None:
    queries = encoder.encode_queries(QUERIES)
    search = AveragedSlots(index)
    together = search.search(queries, 60)
    assert [len(hits) for hits in together] == [60] * len(QUERIES)
    for number, hits in enumerate(together):
        assert search.search(queries.take(np.array([number])), 60) == [hits]
        assert search.search(queries.take(np.array([number])), 5) == [hits[:5]]


def test_words_alone_are_no_vectors(bm25_index: PassageIndex) -> None:
    assert isinstance(bm25_index.manifest.retriever, Bm25Retriever)
    with pytest.raises(ValueError, match="bm25 method and holds no vectors"):
        opened(bm25_index)

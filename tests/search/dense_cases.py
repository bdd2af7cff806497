"""Dense searches of an index, and the streaming scan that others must equal."""

from __future__ import annotations

import torch

from diffretriever.index.fragment_files import lacking
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.accelerate import CandidateSettings, CodeLayout
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.candidates import write_settings
from diffretriever.search.dense.codes import CODES, build_fragment_codes, open_segments
from diffretriever.search.dense.sketch import CandidateIndex
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.encoded import EncodedSearch
from diffretriever.search.sparse.postings import POSTINGS, build_fragment_postings
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

CPU = torch.device("cpu")
BUDGET = 30


def opened(index: PassageIndex, **options: object) -> EncodedSearch:
    return open_dense(index, SearchOptions.model_validate({"index": index.uri, **options}), CPU)


def stream_of(index: PassageIndex) -> StreamingScan:
    return StreamingScan(index, SearchOptions(index=index.uri), CPU)


def streamed(index: PassageIndex, queries: Representations, k: int) -> Hits:
    return stream_of(index).search(queries, k)


def build_codes(index: PassageIndex, layout: CodeLayout = "vectors") -> int:
    """Make the codes that fragments lack; return their number."""
    without = lacking(index, CODES)
    for fragment in without:
        build_fragment_codes(index, fragment, layout)
    return len(without)


def build_postings(index: PassageIndex) -> None:
    for fragment in lacking(index, POSTINGS):
        build_fragment_postings(index, fragment)


def prepare(index: PassageIndex, layout: CodeLayout = "vectors") -> PassageIndex:
    """Give an index of 60 passages codes and a candidate index."""
    build_codes(index, layout)
    CandidateIndex.build(index, open_segments(index)[0])
    index.refresh()
    settings = CandidateSettings(
        search_budget=BUDGET,
        top_k=10,
        target=0.9,
        measured=0.9,
        milliseconds=1,
        sample=1,
        passages=60,
        version=1,
    )
    write_settings(index, settings)
    return index


def assert_same_hits(found: Hits, expected: Hits) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs, "bit for bit"

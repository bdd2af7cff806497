"""Dense search: one interface over exact scans and candidate indexes. Every returned score is exact fp32 MaxSim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.search.dense.calibrate import read_settings
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.mean import MeanProposer
from diffretriever.search.dense.segments import open_segments
from diffretriever.search.dense.stream import StreamingScan
from schemas.candidates import ProposerName
from schemas.jobs import SearchOptions
from schemas.retriever import Bm25Retriever

if TYPE_CHECKING:
    import torch

    from diffretriever.index.table import PassageIndex
    from diffretriever.search.dense.base import DenseSearch


PROPOSERS: dict[ProposerName, type[MeanProposer]] = {"mean": MeanProposer}
"""Candidate indexes by name. Adding one is a file here, a name in `schemas.candidates` and an entry."""


def open_dense(index: PassageIndex, options: SearchOptions, device: torch.device) -> DenseSearch:
    """Return the fastest search that the index is ready for: candidates, the codes of all passages, or a stream.

    Raises:
        ValueError: a search budget is given, but there is no candidate index.
    """
    retriever = index.manifest.retriever
    assert not isinstance(retriever, Bm25Retriever), "BM25 indexes hold no vectors"
    stream = StreamingScan(index, options, device, retriever.max_vectors("passage"))
    if options.maxsim != "mean" or options.score_dtype != "float32":
        # The authors' variants are computed from the vectors themselves.
        return stream
    segments, uncoded = open_segments(index)
    if not segments:
        return stream
    settings = None if options.search_budget == "exact" else read_settings(index)
    if settings is None:
        if isinstance(options.search_budget, int):
            raise ValueError(
                f"a search budget needs a candidate index: `python jobs/accelerate_index.py --index {index.uri} "
                "--candidates mean`, or leave --search-budget out"
            )
        return CodedScan(index, segments, uncoded, stream, options, device)
    budget = settings.search_budget if options.search_budget == "auto" else int(options.search_budget)
    return CandidateSearch(index, segments, uncoded, stream, PROPOSERS[settings.proposer](segments), budget)

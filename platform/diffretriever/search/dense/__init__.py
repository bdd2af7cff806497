"""Dense search: one interface over exact scans and candidate indexes. Every returned score is exact fp32 MaxSim."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from diffretriever.search.dense.calibrate import read_settings
from diffretriever.search.dense.candidates import CandidateSearch, Proposer
from diffretriever.search.dense.coded import CodedPassages, CodedScan
from diffretriever.search.dense.codes import open_segments
from diffretriever.search.dense.compressed import CompressedScan
from diffretriever.search.dense.mean import MeanProposer
from diffretriever.search.dense.plaid import PlaidProposer
from diffretriever.search.dense.stream import StreamingScan
from schemas.accelerate import ProposerName
from schemas.search import SearchOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import torch

    from diffretriever.index.table import PassageIndex
    from diffretriever.search.dense.base import DenseSearch
    from diffretriever.search.dense.codes import Segment


PROPOSERS: Mapping[str, type[Proposer]] = {"mean": MeanProposer, "plaid": PlaidProposer}
"""Candidate indexes by name. Adding one is a file here, a name in `schemas.accelerate` and an entry."""

AUTO: tuple[ProposerName, ...] = ("mean", "plaid")
"""What a calibration chooses from where none is named: those that are made in seconds."""


def open_dense(index: PassageIndex, options: SearchOptions, device: torch.device) -> DenseSearch:
    """Return the fastest search that the index is ready for: candidates, the codes of all passages, or a stream.

    Raises:
        ValueError: a search budget is given, but there is no candidate index.
    """
    retriever = index.manifest.retriever
    if "dense" not in retriever.modes:
        raise ValueError(f"{index.uri} holds no vectors to search: its method is {retriever.method}")
    stream = StreamingScan(index, options, device, retriever.max_vectors("passage"))
    if options.maxsim != "mean" or options.score_dtype != "float32":
        # The authors' variants are computed from the vectors themselves.
        return stream
    segments, uncoded = open_segments(index)
    if not segments:
        return CompressedScan(index, stream) if index.manifest.decodes else stream
    candidates = _open_candidates(index, segments, uncoded, stream, options)
    return candidates or CodedScan(CodedPassages(segments), uncoded, stream, options, device)


def _open_candidates(
    index: PassageIndex, segments: Sequence[Segment], uncoded: list[Any], stream: StreamingScan, options: SearchOptions
) -> CandidateSearch | None:
    """Return the search through the candidate index; None where all passages are to be scored.

    An index made before may be calibrated with a candidate index that is there no longer: a warning says what to run.
    """
    if options.search_budget == "exact":
        return None
    settings = read_settings(index)
    if settings is None:
        if options.search_budget == "auto":
            return None
        raise ValueError(
            f"a search budget needs a candidate index: `python jobs/accelerate_index.py --index {index.uri} "
            "--candidates mean`, or leave --search-budget out"
        )
    if settings.proposer not in PROPOSERS:
        warnings.warn(
            f"{index.uri}: {settings.proposer} is no longer a candidate index, so all passages are scored: run "
            f"`python jobs/accelerate_index.py --index {index.uri} --candidates mean` to have candidates again",
            stacklevel=3,
        )
        return None
    budget = settings.search_budget if options.search_budget == "auto" else options.search_budget
    if budget >= len(index):
        return None
    proposer = PROPOSERS[settings.proposer].open(index, segments)
    known = {id(segment) for segment in proposer.passages.segments}
    unknown = [segment.fragment for segment in segments if id(segment) not in known]
    # A candidate index of other fragments than these has nothing to name.
    return CandidateSearch(proposer, uncoded + unknown, stream, budget) if known else None

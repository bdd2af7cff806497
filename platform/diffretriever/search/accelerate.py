"""Make what speeds up the search of an index, beside its table; run again, it makes what has become missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from diffretriever.encoders.representations import Representations
from diffretriever.files import is_local
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.topk import Hits
from diffretriever.search.base import Searcher
from diffretriever.search.dense import AUTO, PROPOSERS
from diffretriever.search.dense.base import DenseSearch
from diffretriever.search.dense.calibrate import (
    budgets_to_try,
    choose_budget,
    milliseconds,
    sample_queries,
    write_settings,
)
from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.segments import open_segments
from diffretriever.search.fragment_files import (
    Kept,
    Kind,
    Make,
    bytes_in,
    folder_of,
    forget_gone,
    kinds_of,
    make_missing,
    missing_files,
)
from diffretriever.search.neural import NeuralSearcher
from schemas.base import Model
from schemas.candidates import CandidateSettings, ProposerName
from schemas.jobs import AccelerateJob, SearchOptions


class Accelerated(Model):
    """What an accelerate job did."""

    files: dict[Kind, Kept]
    """Of each kind that the index can have."""
    candidates: CandidateSettings | None
    """The candidate index, if one was asked for."""


def accelerate(job: AccelerateJob, make: Make = make_missing) -> Accelerated:
    """Make missing codes and postings, drop those of fragments that are gone, calibrate a candidate index if asked to.

    Raises:
        ValueError: no index there, one that is not on a local disk, or one without vectors and sparse scores.
    """
    index = PassageIndex.open(job.index)
    _refuse_without_kinds(index)
    missing = missing_files(index)
    if missing:
        make(index, missing)
    forget_gone(index)
    settings = None if job.candidates == "none" else _calibrate(index, job, job.candidates)
    files = {
        kind: Kept(
            made=sum(kind in each.kinds for each in missing),
            bytes=sum(bytes_in(folder_of(index, kind, fragment)) for fragment in index.fragments()),
        )
        for kind in kinds_of(index)
    }
    return Accelerated(files=files, candidates=settings)


def _refuse_without_kinds(index: PassageIndex) -> None:
    if kinds_of(index):
        return
    if not is_local(index.uri):
        raise ValueError(f"{index.uri}: codes and postings are memory-mapped, so the index must lie on a local disk")
    raise ValueError(f"{index.uri} holds neither vectors nor impacts: there is nothing to make codes or postings of")


def _calibrate(
    index: PassageIndex, job: AccelerateJob, candidates: Literal["auto"] | ProposerName
) -> CandidateSettings:
    """Keep the fastest way that reaches the recall: one of the candidate indexes, or the exact scan."""
    from diffretriever.search import open_searcher

    names: Sequence[ProposerName] = AUTO if candidates == "auto" else [candidates]
    for name in names:
        PROPOSERS[name].build(index, open_segments(index)[0])
    index.refresh()
    options = SearchOptions(index=job.index, backbone=job.backbone, adapter=job.adapter, search_budget="exact")
    searcher = _neural(open_searcher(job.index, options))
    scan = searcher.dense
    assert isinstance(scan, CodedScan), "codes were built for every fragment"
    queries = sample_queries(index, searcher.encoder, job.sample)
    exact = scan.search(queries, job.top_k)
    scanned = milliseconds(scan, queries, job.top_k)
    outcomes = [_outcome(index, job, name, scan, queries, exact) for name in names]
    settings = min(outcomes, key=lambda outcome: outcome.milliseconds)
    if settings.milliseconds >= scanned:
        settings = settings.model_copy(update={"search_budget": len(index), "measured": 1.0, "milliseconds": scanned})
    write_settings(index, settings)
    return settings


def _outcome(
    index: PassageIndex, job: AccelerateJob, name: ProposerName, scan: CodedScan, queries: Representations, exact: Hits
) -> CandidateSettings:
    proposer = PROPOSERS[name].open(index, open_segments(index)[0])
    budgets = budgets_to_try(job.top_k, len(index))
    budget, measured = choose_budget(proposer, queries, exact, budgets, job.recall)
    search: DenseSearch = scan if budget >= len(index) else CandidateSearch(proposer, [], scan.stream, budget)
    return CandidateSettings(
        proposer=name,
        search_budget=budget,
        top_k=job.top_k,
        target=job.recall,
        measured=measured,
        milliseconds=milliseconds(search, queries, job.top_k),
        sample=len(queries),
        passages=len(index),
        version=index.version,
    )


def _neural(searcher: Searcher) -> NeuralSearcher:
    assert isinstance(searcher, NeuralSearcher), "an index with vectors has an encoder"
    return searcher

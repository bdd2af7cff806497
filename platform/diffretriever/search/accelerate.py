"""Make what speeds up the search of an index, beside its table; run again, it makes what has become missing."""

from __future__ import annotations

import shutil
from pathlib import Path

from diffretriever.index.table import PassageIndex, fragment_key
from diffretriever.search.base import Searcher
from diffretriever.search.dense import PROPOSERS
from diffretriever.search.dense.calibrate import (
    budgets_to_try,
    choose_budget,
    recall_by_budget,
    sample_queries,
    write_settings,
)
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.segments import build_codes, codes_folder, open_segments
from diffretriever.search.neural import NeuralSearcher
from schemas.base import Model
from schemas.candidates import CandidateSettings, ProposerName
from schemas.jobs import AccelerateJob, SearchOptions


class Accelerated(Model):
    """What an accelerate job did."""

    fragments: int
    """Fragments that got codes."""
    bytes: int
    """Size of all codes."""
    candidates: CandidateSettings | None
    """The candidate index, if one was asked for."""


def accelerate(job: AccelerateJob) -> Accelerated:
    """Build missing codes, drop those of fragments that are gone, and calibrate a candidate index if asked to.

    Raises:
        ValueError: no index there, one without vectors, or one that is not on a local disk.
    """
    index = PassageIndex.open(job.index)
    fragments = build_codes(index)
    _forget_gone(index)
    settings = None if job.candidates == "none" else _calibrate(index, job, job.candidates)
    folders = [codes_folder(index, fragment) for fragment in index.fragments()]
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    return Accelerated(fragments=fragments, bytes=size, candidates=settings)


def _calibrate(index: PassageIndex, job: AccelerateJob, name: ProposerName) -> CandidateSettings:
    from diffretriever.search import open_searcher

    PROPOSERS[name].build(index, open_segments(index)[0])
    index.refresh()
    segments, _ = open_segments(index)
    options = SearchOptions(index=job.index, backbone=job.backbone, adapter=job.adapter, search_budget="exact")
    searcher = _neural(open_searcher(job.index, options))
    assert isinstance(searcher.dense, CodedScan), "codes were built for every fragment"
    queries = sample_queries(index, searcher.encoder, job.sample)
    exact = searcher.dense.search(queries, job.top_k)
    budgets = budgets_to_try(job.top_k, len(index))
    proposer = PROPOSERS[name].open(index, segments)
    shares = recall_by_budget(proposer, queries, exact, budgets)
    budget, measured = choose_budget(shares, budgets, job.recall)
    settings = CandidateSettings(
        proposer=name,
        search_budget=budget,
        top_k=job.top_k,
        target=job.recall,
        measured=measured,
        sample=len(queries),
        passages=len(index),
        version=index.version,
    )
    write_settings(index, settings)
    return settings


def _neural(searcher: Searcher) -> NeuralSearcher:
    assert isinstance(searcher, NeuralSearcher), "an index with vectors has an encoder"
    return searcher


def _forget_gone(index: PassageIndex) -> None:
    """Remove the codes of fragments that no kept version of the table has."""
    keys = {fragment_key(f) for version in index.versions() for f in version.fragments()}
    for folder in (Path(index.uri) / "codes").iterdir():
        if folder.is_dir() and folder.name not in keys and not folder.name.startswith("."):
            shutil.rmtree(folder)

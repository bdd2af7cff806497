"""The searching half of a budget sweep: an index for each K_p, queries for each K_q, a run for every pair.

5 + 5 encodings serve 25 pairs (paper §3.5), 1 + 5 where slots are nested: all K_q and all splits are searched for in
one pass over an index. What the runs are worth is measured from the files; see `evaluation.sweep`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from diffretriever.budgets.queries import SweptQuery, write_queries
from diffretriever.collections import Collection, Query, open_collection
from diffretriever.encoders import load_preparer
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.cluster import ray_session, size_pool
from diffretriever.pipelines.description import describe_encoder
from diffretriever.pipelines.sweep_cells import cells_of, search_cells
from diffretriever.pipelines.sweep_folder import NO_BUDGET, begin_sweep
from diffretriever.pipelines.sweep_indexes import encode_indexes
from diffretriever.pipelines.sweep_queries import QueryStore
from diffretriever.presets import RETRIEVERS, load_retriever
from schemas.base import suggest
from schemas.manifest import IndexManifest
from schemas.retriever import MaskedRetriever
from schemas.selection import encoder_fingerprint
from schemas.sweep import SweepMode
from schemas.sweep_job import RETRIEVER_FILE, SweepJob, SweepSummary


def sweep_budgets(job: SweepJob, command: str, say: Callable[[str], None]) -> SweepSummary:
    """Encode and search what the sweep in the job's folder lacks, in the Ray session at hand, or in one of its own.

    Args:
        job: of the sweep.
        command: the command line, for the manifest.
        say: takes a line for each step.

    Raises:
        ValueError: a retriever without slots, a mode or split that is not there, bad input, a folder that holds another
            sweep, or a request that the cluster cannot meet; nothing has been encoded then.
    """
    started = time.monotonic()
    collection = open_collection(job.collection)
    retriever = _retriever(job)
    job = job.model_copy(update={"splits": _splits(job, collection), "modes": _modes(job, retriever)})
    queries = {split: collection.queries(split) for split in job.splits}
    with WriterLock(str(job.output)):
        with ray_session(job):
            pool = size_pool(job)
            encoder = describe_encoder(retriever, pool)
            begin_sweep(job, collection.name, encoder, command)
            _keep_queries(job.output, queries, encoder)
            store = QueryStore(job.output, queries, encoder_fingerprint(encoder))
            # Passages first: a bad one stops the job before anything is encoded.
            indexes = encode_indexes(job, collection, nested=retriever.nested_slots, say=say)
            say(f"queries of {', '.join(job.splits)}")
            store.encode(job.query_budgets, _neural(encoder), job, pool, say)
        return _search(job, indexes, store, started, say)


def _search(
    job: SweepJob, indexes: dict[int, PassageIndex], store: QueryStore, started: float, say: Callable[[str], None]
) -> SweepSummary:
    """Search the cells that no attempt has searched yet; `started` is when the job did."""
    searched = found = passes = 0
    for budget, index in indexes.items():
        cells = cells_of(index, budget, store, job)
        missing = [cell for cell in cells if not cell.is_done(job.modes)]
        say(f"K_p = {budget}: {len(missing):,} of {len(cells):,} cells to search")
        passes += search_cells(index, missing, store, job, say)
        searched, found = searched + len(missing), found + len(cells) - len(missing)
    return SweepSummary(
        passages=len(indexes[job.passage_budgets[0]]),
        searched=searched,
        found=found,
        passes=passes,
        seconds=time.monotonic() - started,
    )


def _retriever(job: SweepJob) -> MaskedRetriever:
    """Return the retriever with the budget of no account, in the precision that the sweep was begun in."""
    config = load_retriever(job.retriever, job.backbone, None, job.adapter)
    if not isinstance(config, MaskedRetriever):
        raise ValueError(f"{job.retriever}: the {config.method} method has no slots, so there are no budgets to sweep")
    begun = job.output / RETRIEVER_FILE
    if begun.is_file() and config.backbone.dtype == "auto":
        before = RETRIEVERS.load(str(begun))
        assert isinstance(before, MaskedRetriever), "only such retrievers are swept"
        place = config.backbone.model_copy(update={"dtype": before.backbone.dtype})
        config = config.model_copy(update={"backbone": place})
    return config.model_copy(update={"budget": NO_BUDGET})


def _splits(job: SweepJob, collection: Collection) -> tuple[str, ...]:
    offered = collection.splits()
    for split in job.splits:
        if split not in offered:
            raise ValueError(f"{collection.name} has no split '{split}'.{suggest(split, offered)}")
    chosen = tuple(dict.fromkeys(job.splits)) or tuple(offered)
    if not chosen:
        raise ValueError(f"{collection.name} has no queries to sweep budgets with")
    return chosen


def _modes(job: SweepJob, retriever: MaskedRetriever) -> tuple[SweepMode, ...]:
    return tuple(dict.fromkeys(job.modes)) or retriever.modes


def _neural(encoder: IndexManifest) -> MaskedRetriever:
    assert isinstance(encoder.retriever, MaskedRetriever), "only such retrievers are swept"
    return encoder.retriever


def _keep_queries(folder: Path, queries: dict[str, list[Query]], encoder: IndexManifest) -> None:
    preparer = load_preparer(_neural(encoder))
    for split, asked in queries.items():
        rows = preparer.query_tokens([query.text for query in asked])
        kept = [SweptQuery(query.id, query.text, tuple(row)) for query, row in zip(asked, rows, strict=True)]
        write_queries(folder, split, kept)

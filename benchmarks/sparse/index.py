"""What the sparse benchmark runs on a real index, each loop in a process of its own; Ray inverts its fragments."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measuring import peak_mb, serve_child, watched
from benchmarks.sparse.figures import Alone, Built, Latencies
from benchmarks.sparse.segments import BATCH, MadeUpImpacts, mapped_bytes, measure, resident_bytes
from diffretriever.index.derived import bytes_in
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, beside, write_block
from diffretriever.representations import Representations
from diffretriever.schemas.index import TEXT_SCHEMA, IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.settings import RayConfig
from diffretriever.search.accelerate import Missing, missing_files
from diffretriever.search.sparse import open_sparse
from diffretriever.search.sparse.postings import POSTINGS, FragmentPostings, PostingsSearch
from diffretriever.search.sparse.segment import Impacts, PostingsSegment


def write(uri: str, impacts: dict[str, Any], fragments: int) -> int:
    """Write an index of so many fragments, all vectors of one number; return the passages."""
    made = MadeUpImpacts.model_validate(impacts)
    retriever = MaskedRetriever.model_validate({"backbone": {"source": "made-up"}, "budget": "q1p1"})
    created = "2026-01-01T00:00:00+00:00"
    about = IndexManifest(
        retriever=retriever, weights="made-up", hidden_size=1, vocab_size=made.vocab_size, created=created
    )
    index = PassageIndex.create(uri, about)
    batches, written = made.batches(), 0
    while chunk := list(islice(batches, made.passages // fragments // BATCH)):
        parts = [_table(batch, written + number * BATCH) for number, batch in enumerate(chunk)]
        Committer(index).commit({"key": write_block(uri, pa.concat_tables(parts))}, [])
        written += sum(map(len, parts))
    return written


def build(uri: str, workers: int) -> Built:
    """Invert all fragments by Ray, whose start is not counted; memory is that of the largest worker."""
    from diffretriever.pipelines.accelerate import make_on_ray
    from diffretriever.pipelines.cluster import ray_session

    index = PassageIndex.open(uri)
    missing = [Missing(each.fragment, ("postings",), each.passages) for each in missing_files(index)]
    with ray_session(RayConfig(ray_address="local")), watched("_make") as peaks:
        start = time.perf_counter()
        make_on_ray(index, missing, workers)
        seconds = time.perf_counter() - start
    opened = _opened(index)
    postings = sum(len(segment.rows_P) for segment in opened)
    return Built(
        seconds=seconds,
        peak_mb=max(peaks),
        postings=postings,
        resident=sum(map(resident_bytes, opened)) / postings,
        disk=bytes_in(Path(uri) / "postings") / postings,
    )


def search(uri: str, impacts: dict[str, Any], queries: int, k: int) -> Alone:
    """Search as a searcher does, ids included, one query at a time; a first round is warm-up."""
    index = PassageIndex.open(uri)
    search = open_sparse(index, SearchOptions(index=uri))
    assert isinstance(search, PostingsSearch), "all fragments have postings"
    asked = [_query(*query) for query in MadeUpImpacts.model_validate(impacts).queries(queries)]
    for _ in range(2):
        ours = Latencies(wall=[], processor=[])
        for query in asked:
            hits = measure(ours, partial(search.search, query, k))
            assert len(hits[0]) == k, "enough passages share a term"
    postings = sum(len(segment.rows_P) for segment in _opened(index))
    return Alone(ours=ours, peak_mb=peak_mb(), mapped=mapped_bytes(uri) / postings)


def _opened(index: PassageIndex) -> list[PostingsSegment]:
    folders = [POSTINGS.folder_of(index, fragment).path for fragment in index.fragments()]
    return [FragmentPostings.open(folder).segment for folder in folders]


def _query(ids: np.ndarray, weights: np.ndarray) -> Representations:
    return _representations((ids, weights, np.array([0, len(ids)])))


def _table(batch: Impacts, first: int) -> pa.Table:
    count = len(batch[2]) - 1
    texts = [[f"{first + row:09d}" for row in range(count)], ["made-up"] * count, [""] * count, [""] * count]
    columns = [*texts, [b"\0" * 16] * count]
    described = [pa.array(column, field.type) for column, field in zip(columns, TEXT_SCHEMA, strict=True)]
    return beside(pa.Table.from_arrays(described, schema=TEXT_SCHEMA), _representations(batch).to_arrow())


def _representations(batch: Impacts) -> Representations:
    count = len(batch[2]) - 1
    return Representations(
        vectors_MH=np.ones((count, 1), np.float16),
        offsets=np.arange(count + 1),
        slot_tokens=np.full(count, -1, np.int32),
        impact_ids=batch[0],
        impact_weights=batch[1],
        impact_offsets=batch[2],
        n_tokens=np.ones(count, np.int32),
    )


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (write, build, search)})

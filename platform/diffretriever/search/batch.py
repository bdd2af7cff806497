"""The part of a batch search that one task does, and what of its rankings goes into a run.

A task searches a part of an index for queries that are encoded already; its hits travel as Arrow tables. What is kept
of several parts, merged, is what a search of the whole keeps: scores do not depend on the part that a passage is in,
and ties go by id. Arrow orders texts by their UTF-8 bytes, which is the order of code points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.backbones.device import resolve_device
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.fusion import ListName, depth_for, lists_for
from diffretriever.scoring.topk import Hit, Hits
from diffretriever.search.dense import open_dense
from diffretriever.search.sparse import open_sparse
from schemas.search import BatchSearchJob

SCHEMA = pa.schema([("query", pa.int32()), ("id", pa.large_string()), ("score", pa.float64())])
"""One row a hit: the number of the query, the passage, its score; by query, best first."""


def search_lists(
    part: PassageIndex, queries: Representations, job: BatchSearchJob, device: str
) -> Iterator[tuple[ListName, pa.Table]]:
    """Yield each list that the job's modes need, with each query's best passages of the part.

    Args:
        part: of the index.
        queries: encoded.
        job: whose modes, depth and options count.
        device: where vectors are scored.
    """
    for name in lists_for(job.modes):
        search = open_dense(part, job, resolve_device(device)) if name == "dense" else open_sparse(part, job)
        yield name, to_table(search.search(queries, list_depth(job)))


def list_depth(job: BatchSearchJob) -> int:
    """Return how many passages of each list are kept for a query."""
    return depth_for(job.modes, searched_depth(job.top_k, exclude_self=job.exclude_self))


def searched_depth(top_k: int, *, exclude_self: bool) -> int:
    """Return how many passages to search for: one more than asked where a query's own document may have to go."""
    return top_k + exclude_self


def kept_hits(query_id: str, hits: Sequence[Hit], top_k: int, *, exclude_self: bool) -> list[Hit]:
    """Return the best `top_k` hits, the query's own document (same id) left out if asked for.

    Args:
        query_id: of the query.
        hits: best first.
        top_k: how many are kept.
        exclude_self: whether the query's own document is left out.
    """
    return [hit for hit in hits if not (exclude_self and hit[0] == query_id)][:top_k]


def to_table(hits: Hits) -> pa.Table:
    """Return the hits of queries 0, 1, … as a table of `SCHEMA`."""
    counts = [len(each) for each in hits]
    columns = [
        pa.array(np.repeat(np.arange(len(hits), dtype=np.int32), counts)),
        pa.array([passage for each in hits for passage, _ in each], pa.large_string()),
        pa.array([score for each in hits for _, score in each], pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def to_hits(table: pa.Table, n_queries: int) -> Hits:
    """Return what `to_table` was given."""
    ids, scores = table.column("id").to_pylist(), table.column("score").to_pylist()
    ends = np.searchsorted(table.column("query").to_numpy(), np.arange(n_queries + 1))
    pairs = list(zip(ids, scores, strict=True))
    return [pairs[start:end] for start, end in pairwise(ends)]


def merge(tables: Sequence[pa.Table], k: int) -> pa.Table:
    """Return each query's k best hits of all tables; no passage may be in two."""
    together = pa.concat_tables(tables)
    order = pc.sort_indices(together, sort_keys=[("query", "ascending"), ("score", "descending"), ("id", "ascending")])
    ranked = together.take(order).combine_chunks()
    query = ranked.column("query").to_numpy()
    ranks = np.arange(len(query)) - np.searchsorted(query, query)
    return ranked.filter(pa.array(ranks < k))

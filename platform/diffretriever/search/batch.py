"""The part of a batch search that one task does, and what of its rankings goes into a run.

A task searches a part of an index for queries that are encoded already; its hits travel as Arrow tables, with ids in
the place of numbers, which mean something in that part alone. What is kept of several parts, merged, is what a search
of the whole keeps: scores do not depend on the part that a passage is in, and ties go by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from diffretriever.backbones.device import resolve_device
from diffretriever.index.filters import condition_of
from diffretriever.index.parts import IndexPart
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import ListName
from diffretriever.schemas.search import BatchSearchJob
from diffretriever.search.dense import open_dense
from diffretriever.search.sparse import open_sparse
from diffretriever.vectors.fusion import depth_for, encoded_lists_for
from diffretriever.vectors.hits import Hits, Passages
from diffretriever.vectors.representations import Representations

SCHEMA = pa.schema([("query", pa.int32()), ("id", pa.large_string()), ("score", pa.float64())])
"""One row a hit: the number of the query, the passage, its score; by query, best first."""


def search_lists(
    part: PassageIndex, queries: Representations, job: BatchSearchJob, device: str
) -> Iterator[tuple[ListName, pa.Table]]:
    """Yield each list that the job's modes need of encoded queries, with each query's best passages of the part."""
    if job.filter is not None:
        part = IndexPart.filtered(part, condition_of(job.filter, part.manifest.metadata))
    for name in encoded_lists_for(job.modes):
        options = job.search_options
        search = open_dense(part, options, resolve_device(device)) if name == "dense" else open_sparse(part, options)
        yield name, to_table(search.search(queries, list_depth(job)))


def list_depth(job: BatchSearchJob) -> int:
    """Return how many passages of each list are kept for a query."""
    return depth_for(job.modes, searched_depth(job.top_k, exclude_self=job.drops_self))


def searched_depth(k: int, *, exclude_self: bool) -> int:
    """Return how many passages to search for: one more than asked where a query's own document may have to go."""
    return k + exclude_self


def kept_hits(query_ids: Sequence[str], hits: Hits, k: int, *, exclude_self: bool) -> Hits:
    """Return each query's best `k` hits; with `exclude_self`, without its own document (same id)."""
    return (hits.without(query_ids) if exclude_self else hits).first(k)


def to_table(hits: Hits, *, with_rows: bool = False) -> pa.Table:
    """Return the hits of queries 0, 1, … as a table of `SCHEMA`, if asked for with `row`: `Hits.rows`, int64."""
    columns = [pa.array(hits.queries(), pa.int32()), hits.ids(), pa.array(hits.scores_F)]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    return table.append_column("row", pa.array(hits.rows())) if with_rows else table


def to_hits(tables: Mapping[ListName, pa.Table], n_queries: int) -> dict[ListName, Hits]:
    """Return what `to_table` was given for each list; passages have the same numbers in all of them."""
    together = pa.concat_tables(tables.values())
    passages, numbers = Passages.numbered(together.column("id"))
    if "row" in together.column_names:
        rows_P = np.empty(len(passages), np.int64)
        rows_P[numbers] = together.column("row").to_numpy()
        passages = Passages(passages.ids, rows_P)
    queries = np.arange(n_queries + 1)
    own = np.split(numbers, np.cumsum([len(table) for table in tables.values()])[:-1])
    return {
        name: Hits(
            passages,
            np.searchsorted(table.column("query").to_numpy(), queries),
            numbers_F,
            table.column("score").to_numpy(),
        )
        for (name, table), numbers_F in zip(tables.items(), own, strict=True)
    }


def merge(tables: Sequence[pa.Table], k: int) -> pa.Table:
    """Return each query's k best hits of all tables; no passage may be in two."""
    together = pa.concat_tables(tables)
    _, numbers = Passages.numbered(together.column("id"))
    query = together.column("query").to_numpy()
    order = np.lexsort((numbers, -together.column("score").to_numpy(), query))
    query = query[order]
    ranks = np.arange(len(query)) - np.searchsorted(query, query)
    return together.take(pa.array(order[ranks < k])).combine_chunks()

"""Batch search of one index part, and the merge of several parts' hits.

A task searches one part for encoded queries and returns its hits as Arrow tables with passage ids. Merged parts equal a
search of the whole index, because scores do not depend on the part and ties are ranked by id.
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
"""One row per hit: query number, passage id and score; sorted by query, best first."""


def search_lists(
    part: PassageIndex, queries: Representations, job: BatchSearchJob, device: str
) -> Iterator[tuple[ListName, pa.Table]]:
    """Yield the result list of each scorer of encoded queries that the job's modes need."""
    if job.filter is not None:
        part = IndexPart.filtered(part, condition_of(job.filter, part.manifest.metadata))
    for name in encoded_lists_for(job.modes):
        options = job.search_options
        search = open_dense(part, options, resolve_device(device)) if name == "dense" else open_sparse(part, options)
        yield name, to_table(search.search(queries, list_depth(job)))


def list_depth(job: BatchSearchJob) -> int:
    """Return the depth of the job's result lists."""
    return depth_for(job.modes, searched_depth(job.top_k, exclude_self=job.drops_self))


def searched_depth(k: int, *, exclude_self: bool) -> int:
    """Return the search depth: `k`, plus one if the query's own document may be removed."""
    return k + exclude_self


def kept_hits(query_ids: Sequence[str], hits: Hits, k: int, *, exclude_self: bool) -> Hits:
    """Return each query's best `k` hits; `exclude_self` removes the document with the query's id."""
    return (hits.without(query_ids) if exclude_self else hits).first(k)


def to_table(hits: Hits, *, with_rows: bool = False) -> pa.Table:
    """Return hits as a table of `SCHEMA`; `with_rows` adds the int64 column `row` (`Hits.rows`)."""
    columns = [pa.array(hits.queries(), pa.int32()), hits.ids(), pa.array(hits.scores_F)]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    return table.append_column("row", pa.array(hits.rows())) if with_rows else table


def to_hits(tables: Mapping[ListName, pa.Table], n_queries: int) -> dict[ListName, Hits]:
    """Convert tables of `to_table` back to hits that share passage numbers."""
    combined = pa.concat_tables(tables.values())
    passages, numbers = Passages.numbered(combined.column("id"))
    if "row" in combined.column_names:
        rows_P = np.empty(len(passages), np.int64)
        rows_P[numbers] = combined.column("row").to_numpy()
        passages = Passages(passages.ids, rows_P)
    queries = np.arange(n_queries + 1)
    numbers_of_lists = np.split(numbers, np.cumsum([len(table) for table in tables.values()])[:-1])
    return {
        name: Hits(
            passages,
            np.searchsorted(table.column("query").to_numpy(), queries),
            numbers_F,
            table.column("score").to_numpy(),
        )
        for (name, table), numbers_F in zip(tables.items(), numbers_of_lists, strict=True)
    }


def merge(tables: Sequence[pa.Table], k: int) -> pa.Table:
    """Return each query's k best hits of all tables; each passage may occur in one table only."""
    combined = pa.concat_tables(tables)
    _, numbers = Passages.numbered(combined.column("id"))
    query = combined.column("query").to_numpy()
    order = np.lexsort((numbers, -combined.column("score").to_numpy(), query))
    query = query[order]
    ranks = np.arange(len(query)) - np.searchsorted(query, query)
    return combined.take(pa.array(order[ranks < k])).combine_chunks()

"""Ranked passages of many queries as Arrow tables, and their exact merging.

What is kept of several parts of an index, merged, is what a search of the whole keeps: scores do not depend on the part
that a passage is in, and ties go by id. Arrow orders texts by their UTF-8 bytes, which is the order of code points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.scoring.topk import Hits

SCHEMA = pa.schema([("query", pa.int32()), ("id", pa.large_string()), ("score", pa.float64())])
"""One row a hit: the number of the query, the passage, its score; by query, best first."""


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

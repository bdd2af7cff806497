"""What a run and qrels have in common, and sentences where that is too little to trust the measures.

Legend: Q queries of the qrels.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.collections import Qrels, Run
from diffretriever.schemas.evaluate import Overlap

_DEPTH = 10


def relevant_in(qrels: Qrels) -> list[str]:
    """Return the passages that are judged relevant for any query, in the order of their ids."""
    return sorted({passage for values in qrels.values() for passage, value in values.items() if value > 0})


def overlap_of(run: Run, qrels: Qrels) -> Overlap:
    """Return what a run and qrels have in common."""
    asked = run.of_queries(list(qrels)).hits
    first = asked.first(_DEPTH)
    counts_Q = np.diff(first.offsets)
    queries = [query for query, count in zip(qrels, counts_Q.tolist(), strict=True) for _ in range(count)]
    judged = sum(passage in qrels[query] for query, passage in zip(queries, first.names(), strict=True))
    found = pa.array(np.unique(asked.numbers_F))
    known = pc.is_in(asked.passages.ids.take(found), value_set=pa.array(relevant_in(qrels), pa.large_string()))
    return Overlap(
        queries=int((counts_Q > 0).sum()),
        judged=judged / len(queries) if queries else 0.0,
        relevant=int(pc.sum(known).as_py() or 0),
    )


def warnings_of(name: str, overlap: Overlap, queries: int) -> list[str]:
    """Return the sentences to show for a run of this name, measured on so many queries; none where all is well."""
    if not overlap.queries:
        return [f"{name} has passages for none of the {queries:,} judged queries: is it of the same split?"]
    told = []
    if overlap.queries < queries:
        told.append(f"{name} has passages for {overlap.queries:,} of {queries:,} judged queries: the others count as 0")
    if not overlap.relevant:
        told.append(f"{name} finds no passage that is judged relevant: is it of the same collection?")
    return told

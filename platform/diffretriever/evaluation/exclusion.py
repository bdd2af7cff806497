"""Self-exclusion: removes queries that are themselves passages from their own results.

If most queries are passages of the collection (BEIR's ArguAna and Quora), each is removed from its own results. Equal
ids are not enough: Cranfield numbers both queries and passages from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from diffretriever.collections import BadRecord, Passage, Qrels, Query, Run
from diffretriever.schemas.settings import SelfExclusion

if TYPE_CHECKING:
    from diffretriever.index.table import PassageIndex

_Job = TypeVar("_Job", bound=SelfExclusion)


def settled_by_index(
    job: _Job, index: PassageIndex, queries: Sequence[Query], qrels: Qrels
) -> tuple[_Job, tuple[str, ...]]:
    """Set the job's self-exclusion; also return a sentence if the index's passages decided it.

    The job's flag takes precedence. `qrels` are those of the job's split.
    """
    if job.exclude_self is not None:
        return job, ()
    passages = index.order.passages
    numbers = passages.numbers_of([query.id for query in queries])
    shared = [query.id for query, number in zip(queries, numbers.tolist(), strict=True) if number >= 0]
    texts: dict[str, str] = {}
    if _is_most(len(shared), qrels):
        assert passages.rows_P is not None, "an index has its passages in rows"
        rows = index.take(passages.rows_P[numbers[numbers >= 0]], ["text"])
        texts = dict(zip(shared, rows.column("text").to_pylist(), strict=True))
    return _settled(job, _count_own(queries, qrels, texts), qrels)


def settled_by_passages(
    job: _Job, records: Iterable[Passage | BadRecord], queries: Sequence[Query], qrels: Qrels
) -> tuple[_Job, tuple[str, ...]]:
    """Set the job's self-exclusion from a collection's records; as `settled_by_index`."""
    if job.exclude_self is not None:
        return job, ()
    ids = {query.id for query in queries}
    texts = {record.id: record.text for record in records if isinstance(record, Passage) and record.id in ids}
    return _settled(job, _count_own(queries, qrels, texts), qrels)


def settled_by_runs(job: _Job, runs: Mapping[str, Run], qrels: Qrels) -> tuple[_Job, dict[str, Run], tuple[str, ...]]:
    """Set self-exclusion and apply it to the runs; also return a sentence if the runs decided it.

    Queries count as passages if a run ranks their own ids first for most queries.
    """
    notices: tuple[str, ...] = ()
    if job.exclude_self is None:
        job, notices = _settled(job, max((count_own_first(run, qrels) for run in runs.values()), default=0), qrels)
    kept = {name: run.without_self() for name, run in runs.items()} if job.drops_self else dict(runs)
    return job, kept, notices


def _settled(job: _Job, count: int, qrels: Qrels) -> tuple[_Job, tuple[str, ...]]:
    if not _is_most(count, qrels):
        return job.settled(default=False), ()
    notice = (
        f"{count:,} of {len(qrels):,} queries are passages of the collection: each is left out of its own results, as "
        "BEIR does; --no-exclude-self keeps them"
    )
    return job.settled(default=True), (notice,)


def _is_most(count: int, qrels: Qrels) -> bool:
    return 2 * count > len(qrels)


def _count_own(queries: Sequence[Query], qrels: Qrels, texts: Mapping[str, str]) -> int:
    return sum(
        query.id in texts and _is_not_relevant(query.id, qrels) and _plain(query.text) == _plain(texts[query.id])
        for query in queries
    )


def count_own_first(run: Run, qrels: Qrels) -> int:
    """Return the number of queries that rank the passage with their own id first, although it is not relevant."""
    first = run.of_queries(list(qrels)).hits.first(1)
    queries = pa.array(list(qrels), pa.large_string()).take(pa.array(first.queries()))
    pairs = zip(queries.to_pylist(), first.names(), strict=True)
    return sum(query == passage and _is_not_relevant(query, qrels) for query, passage in pairs)


def _is_not_relevant(query: str, qrels: Qrels) -> bool:
    return qrels.get(query, {}).get(query, 0) <= 0


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()

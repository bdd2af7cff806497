"""What there is to rerank: a run's queries and the texts of their best passages, found before any is scored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from diffretriever.collections import BadRecord, Passage, Query, open_collection, read_run
from diffretriever.scoring.topk import top_k
from schemas.rerank import RerankJob


@dataclass(frozen=True, slots=True)
class Candidates:
    """A query of the run.

    Attributes:
        query: id and text.
        passages: those to rerank, best first.
        rest: ids of those below, best first.
    """

    query: Query
    passages: list[Passage]
    rest: list[str]


def read_candidates(job: RerankJob, records: Iterable[Passage | BadRecord]) -> list[Candidates]:
    """Read the job's run and find its texts; the queries keep the run's order.

    Args:
        job: the job.
        records: where the passages are; read once, as far as the last one that is needed.

    Raises:
        ValueError: the run is malformed, or a text is missing; the message names the id and where it was sought.
    """
    ranked = {query_id: _ranked_ids(scores) for query_id, scores in read_run(job.run).items()}
    queries = _find_queries(job, ranked)
    wanted = {passage_id: query_id for query_id, ids in ranked.items() for passage_id in ids[: job.depth]}
    passages = _find_passages(job, records, wanted)
    return [
        Candidates(queries[query_id], [passages[i] for i in ids[: job.depth]], ids[job.depth :])
        for query_id, ids in ranked.items()
    ]


def _ranked_ids(scores: dict[str, float]) -> list[str]:
    return [passage_id for passage_id, _ in top_k(np.array(list(scores.values())), list(scores), len(scores))]


def _find_queries(job: RerankJob, query_ids: Iterable[str]) -> dict[str, Query]:
    queries = {query.id: query for query in open_collection(job.collection).queries(job.split)}
    missing = [query_id for query_id in query_ids if query_id not in queries]
    if missing:
        raise ValueError(
            f"{job.run}: {len(missing)} of its queries are not in split '{job.split}' of {job.collection}, "
            f"for example '{missing[0]}'. Give another --split or --collection."
        )
    return queries


def _find_passages(
    job: RerankJob, records: Iterable[Passage | BadRecord], wanted: dict[str, str]
) -> dict[str, Passage]:
    found: dict[str, Passage] = {}
    for record in records if wanted else ():
        if isinstance(record, Passage) and record.id in wanted:
            found.setdefault(record.id, record)
            if len(found) == len(wanted):
                break
    missing = [passage_id for passage_id in wanted if passage_id not in found]
    if missing:
        source, flag = (job.index, "--index") if job.index else (job.collection, "--collection")
        raise ValueError(
            f"{job.run}: {len(missing)} of the passages to rerank are not in {source}, for example '{missing[0]}' of "
            f"query '{wanted[missing[0]]}'. Give another {flag}, the one that the run was made from."
        )
    return found

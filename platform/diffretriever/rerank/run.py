"""Reranks a TREC run, query by query.

Queries and passages are read before scoring starts. Finished queries are stored in the output's folder, so that a
killed job resumes.

Legend: N passages of a query.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from diffretriever.collections import BadRecord, Passage, Query, Run, open_collection, read_run, write_run
from diffretriever.core.files import json_digest, write_text
from diffretriever.core.ledger import Ledger
from diffretriever.core.progress import Progress
from diffretriever.presets import in_tag
from diffretriever.rerank import reranker_config
from diffretriever.rerank.base import Reranker
from diffretriever.rerank.diffurank import DiffuRank
from diffretriever.rerank.likelihood import QueryLikelihood
from diffretriever.schemas.locations import StorePath, parse_location
from diffretriever.schemas.rerank import RerankerConfig, RerankJob, RerankSummary
from diffretriever.vectors.hits import top_k


class Candidates(NamedTuple):
    """A query of the run."""

    query: Query
    passages: list[Passage]
    """Those to rerank, best first."""
    rest: list[str]
    """Ids of those below, best first."""


def rerank_run(job: RerankJob, records: Iterable[Passage | BadRecord]) -> RerankSummary:
    """Rerank the job's run with the passages in `records`, and write its two files.

    Inputs are checked before the model loads. A killed attempt loses one query.

    Raises:
        ValueError: Unknown reranker, malformed run or missing text; nothing has been written then.
    """
    config = reranker_config(job.reranker, job.backbone)
    candidates = read_candidates(job, records)
    method = QueryLikelihood if config.method == "query-likelihood" else DiffuRank
    reranker: Reranker = method.load(config, job.device)
    ledger = Ledger(_sidecar_path(job, "partial"))
    # An entry is named after all that its scores depend on: a job with other settings never takes them.
    names = {c.query.id: _ledger_name(reranker, c) for c in candidates}
    scores = {c.query.id: stored for c in candidates if (stored := ledger.get_json(names[c.query.id])) is not None}
    resumed, n_passages, started = len(scores), 0, time.monotonic()
    with Progress("reranking", len(candidates), unit="queries", done=resumed, quiet=True) as progress:
        for query, passages, _ in candidates:
            if query.id in scores:
                continue
            scores[query.id] = reranker.score(query.text, passages).tolist()
            ledger.put_json(names[query.id], scores[query.id])
            n_passages += len(passages)
            progress.update()
    seconds = time.monotonic() - started
    write_text(_sidecar_path(job, "yaml"), _description(job, reranker))
    run = Run.of_lists((c.query.id, reordered(c, np.array(scores[c.query.id]))) for c in candidates)
    write_run(job.output, [run], _tag(job, config))
    ledger.clear()
    return RerankSummary(queries=len(candidates), resumed=resumed, passages=n_passages, seconds=seconds)


def _tag(job: RerankJob, config: RerankerConfig) -> str:
    name = in_tag(parse_location(job.reranker).name.removesuffix(".yaml"))
    return name if config.method in name else f"{name}.{config.method}"


def _sidecar_path(job: RerankJob, end: str) -> Path | StorePath:
    return job.output.with_name(f"{job.output.name}.{end}")


def _ledger_name(reranker: Reranker, candidates: Candidates) -> str:
    passages = [[passage.id, passage.digest.hex()] for passage in candidates.passages]
    return f"{json_digest([reranker.identity, candidates.query.text, passages])}.json"


def _description(job: RerankJob, reranker: Reranker) -> str:
    values = {
        "job": job.model_dump(mode="json", exclude={"config"}),
        "reranker": reranker.config.model_dump(mode="json"),
        "weights": reranker.backbone.weights_digest,
        "dtype": reranker.backbone.precision,
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def reordered(candidates: Candidates, scores_N: np.ndarray) -> list[tuple[str, float]]:
    """Return a query's passages as (id, score): the scored ones by score, then the rest in its old order.

    Ties rank by passage id ascending. The rest gets the lowest score minus 1, 2 and so on.
    """
    ids = [passage.id for passage in candidates.passages]
    ranked = top_k(scores_N, ids, len(ids))
    lowest = ranked[-1][1]
    return ranked + [(passage_id, lowest - below) for below, passage_id in enumerate(candidates.rest, start=1)]


def read_candidates(job: RerankJob, records: Iterable[Passage | BadRecord]) -> list[Candidates]:
    """Read the job's run and its texts in `records`; queries keep the run's order.

    Raises:
        ValueError: The run is malformed, or a text is missing; the message names the id and the collection.
    """
    ranked = {query_id: list(scores) for query_id, scores in read_run(job.run).items()}
    queries = _find_queries(job, ranked)
    query_of = {passage_id: query_id for query_id, ids in ranked.items() for passage_id in ids[: job.depth]}
    passages = _find_passages(job, records, query_of)
    return [
        Candidates(queries[query_id], [passages[i] for i in ids[: job.depth]], ids[job.depth :])
        for query_id, ids in ranked.items()
    ]


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
    job: RerankJob, records: Iterable[Passage | BadRecord], query_of: dict[str, str]
) -> dict[str, Passage]:
    passages: dict[str, Passage] = {}
    for record in records if query_of else ():
        if isinstance(record, Passage) and record.id in query_of:
            passages.setdefault(record.id, record)
            if len(passages) == len(query_of):
                break
    missing = [passage_id for passage_id in query_of if passage_id not in passages]
    if missing:
        source, flag = (job.index, "--index") if job.index else (job.collection, "--collection")
        raise ValueError(
            f"{job.run}: {len(missing)} of the passages to rerank are not in {source}, for example '{missing[0]}' of "
            f"query '{query_of[missing[0]]}'. Give another {flag}, the one that the run was made from."
        )
    return passages

"""A rerank job: from a run to a run, one query after another.

The run's queries and the texts of their best passages are found before any is scored. Finished queries are kept
beside the output, so that a killed job goes on where it was.

Legend: N passages of a query.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from diffretriever.collections import BadRecord, Passage, Query, Run, open_collection, read_run, write_run
from diffretriever.files import write_text
from diffretriever.ledger import Ledger
from diffretriever.presets import in_tag
from diffretriever.progress import Progress
from diffretriever.rerank import load_reranker, reranker_config
from diffretriever.rerank.base import Reranker
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.rerank import RerankJob, RerankSummary
from diffretriever.scoring.hits import top_k


def rerank_run(job: RerankJob, records: Iterable[Passage | BadRecord]) -> RerankSummary:
    """Rerank the job's run with the passages in `records`, and write its two files.

    Everything is read and checked before the model loads. Finished queries are kept beside the output: an attempt that
    is killed loses the query it was at.

    Raises:
        ValueError: no such reranker, a malformed run, or a missing text; no file has been written then.
    """
    config = reranker_config(job.reranker, job.backbone)
    candidates = read_candidates(job, records)
    reranker = load_reranker(config, job.device)
    partial = PartialScores(job.output, reranker.identity)
    earlier = {c.query.id: found for c in candidates if (found := partial.find(c)) is not None}
    started = time.monotonic()
    scored = _score(reranker, [c for c in candidates if c.query.id not in earlier], partial, len(candidates))
    seconds = time.monotonic() - started
    scores = earlier | scored
    write_text(_config_path(job.output), _description(job, reranker))
    run = Run.of_lists((c.query.id, reordered(c, scores[c.query.id])) for c in candidates)
    write_run(job.output, [run], f"{in_tag(as_place(job.reranker).name.removesuffix('.yaml'))}.{config.method}")
    partial.remove()
    return RerankSummary(
        queries=len(candidates),
        resumed=len(earlier),
        passages=sum(map(len, scored.values())),
        seconds=seconds,
    )


def _score(
    reranker: Reranker, waiting: Sequence[Candidates], partial: PartialScores, total: int
) -> dict[str, np.ndarray]:
    scores: dict[str, np.ndarray] = {}
    done = total - len(waiting)
    with Progress("reranking", total, unit="queries", done=done, quiet=True) as progress:
        for candidates in waiting:
            scores_N = reranker.score(candidates.query.text, candidates.passages)
            partial.add(candidates, scores_N)
            scores[candidates.query.id] = scores_N
            progress.update()
    return scores


def _config_path(output: Path | StorePath) -> Path | StorePath:
    return output.with_name(f"{output.name}.yaml")


def _description(job: RerankJob, reranker: Reranker) -> str:
    values = {
        "job": job.model_dump(mode="json", exclude={"config"}),
        "reranker": reranker.config.model_dump(mode="json"),
        "weights": reranker.backbone.weights_digest,
        "dtype": reranker.precision,
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def reordered(candidates: Candidates, scores_N: np.ndarray) -> list[tuple[str, float]]:
    """Return all passages of a query as (id, score), best first: the scored ones, then the rest in its old order.

    Equal scores are ranked by passage id ascending. The rest gets the lowest score less 1, less 2 and so on.
    """
    ids = [passage.id for passage in candidates.passages]
    ranked = top_k(scores_N, ids, len(ids))
    lowest = ranked[-1][1]
    return ranked + [(passage_id, lowest - below) for below, passage_id in enumerate(candidates.rest, start=1)]


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
    ranked = {query_id: list(scores) for query_id, scores in read_run(job.run).items()}
    queries = _find_queries(job, ranked)
    wanted = {passage_id: query_id for query_id, ids in ranked.items() for passage_id in ids[: job.depth]}
    passages = _find_passages(job, records, wanted)
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


class PartialScores:
    """Scores of finished queries, in the folder `OUTPUT.partial` until the run is written.

    An entry is named after reranker, query and passages, so a job with other settings never takes over its scores.
    """

    def __init__(self, output: Path | StorePath, identity: str) -> None:
        """`identity` is `Reranker.identity`."""
        self._ledger = Ledger(output.with_name(f"{output.name}.partial"))
        self._identity = identity

    def find(self, candidates: Candidates) -> np.ndarray | None:
        """Return the scores of a finished query, float64 [N], or None."""
        scores = self._ledger.get_json(self._name(candidates))
        return None if scores is None else np.array(scores, np.float64)

    def add(self, candidates: Candidates, scores_N: np.ndarray) -> None:
        """Keep the scores of a query; they outlast the process once this returns."""
        self._ledger.put_json(self._name(candidates), scores_N.tolist())

    def remove(self) -> None:
        """Delete them, when the output is there."""
        self._ledger.clear()

    def _name(self, candidates: Candidates) -> str:
        parts = [self._identity.encode(), candidates.query.text.encode()]
        parts += [part for passage in candidates.passages for part in (passage.id.encode(), passage.digest)]
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return f"{digest.hexdigest()}.json"

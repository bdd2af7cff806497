"""A rerank job: from a run to a run, one query after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import yaml
from tqdm import tqdm

from diffretriever.collections import BadRecord, Passage, write_run
from diffretriever.files import write_text
from diffretriever.rerank import load_reranker
from diffretriever.rerank.base import Reranker
from diffretriever.rerank.candidates import Candidates, read_candidates
from diffretriever.rerank.partial import PartialScores
from diffretriever.rerank.presets import reranker_config
from diffretriever.scoring.topk import top_k
from schemas.rerank import RerankJob, RerankSummary


def rerank_run(job: RerankJob, records: Iterable[Passage | BadRecord]) -> RerankSummary:
    """Rerank the job's run with the passages in `records`, and write its two files.

    Everything is read and checked before the model loads. Finished queries are kept in a side file: an attempt that is
    killed loses the query it was at.

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
    write_run(job.output, ((c.query.id, reordered(c, scores[c.query.id])) for c in candidates), config.method)
    partial.remove()
    return RerankSummary(
        queries=len(candidates),
        resumed=len(earlier),
        passages=sum(map(len, scored.values())),
        seconds=seconds,
    )


def reordered(candidates: Candidates, scores_N: np.ndarray) -> list[tuple[str, float]]:
    """Return all passages of a query as (id, score), best first: the scored ones, then the rest in its old order.

    Equal scores are ranked by passage id ascending. The rest gets the lowest score less 1, less 2 and so on.
    """
    ids = [passage.id for passage in candidates.passages]
    ranked = top_k(scores_N, ids, len(ids))
    lowest = ranked[-1][1]
    return ranked + [(passage_id, lowest - below) for below, passage_id in enumerate(candidates.rest, start=1)]


def _score(
    reranker: Reranker, waiting: Sequence[Candidates], partial: PartialScores, total: int
) -> dict[str, np.ndarray]:
    scores: dict[str, np.ndarray] = {}
    # A log file gets a line now and then, a terminal a live one.
    interval = 0.5 if sys.stderr.isatty() else 10.0
    done = total - len(waiting)
    with tqdm(total=total, initial=done, desc="reranking", unit="query", mininterval=interval) as progress:
        for candidates in waiting:
            scores_N = reranker.score(candidates.query.text, candidates.passages)
            partial.add(candidates, scores_N)
            scores[candidates.query.id] = scores_N
            progress.update()
    return scores


def _config_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.yaml")


def _description(job: RerankJob, reranker: Reranker) -> str:
    values = {
        "job": job.model_dump(mode="json", exclude={"config"}),
        "reranker": reranker.config.model_dump(mode="json"),
        "weights": reranker.backbone.weights_digest,
        "dtype": reranker.precision,
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

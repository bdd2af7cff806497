"""What a pruning curve is drawn from: an index's vectors, encoded queries and judgements, of a sweep or not.

Legend: N vectors of all passages, P passages, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diffretriever.analysis.other_systems import excludes_self, swept_qrels
from diffretriever.budgets.queries import read_queries
from diffretriever.budgets.splits import SweptSplit, open_splits
from diffretriever.collections import Qrels, open_collection
from diffretriever.encoders.representations import Representations, read_vectors
from diffretriever.index.finite import finite_rows
from diffretriever.index.identity import check_same, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.presets import with_places
from schemas.budget import Budget
from schemas.prune import PruneSlotsJob
from schemas.retriever import MaskedRetriever

_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class PruneSource:
    """Queries and the passages that they are searched in.

    Attributes:
        index: whose vectors are pruned.
        passage_ids: P ids.
        vectors_NH: float16 [N, H].
        offsets: int64 [P + 1]; passage i owns rows offsets[i] to offsets[i + 1].
        query_ids: of the encoded queries.
        queries: encoded.
        query_budget: their K_q.
        qrels: judgements.
        exclude_self: whether a query's own document is left out.
        encoded: K_p below the index's own → (values of the sweep's dense runs by query id, vectors in that index).
    """

    index: PassageIndex
    passage_ids: list[str]
    vectors_NH: np.ndarray
    offsets: np.ndarray
    query_ids: list[str]
    queries: Representations
    query_budget: int
    qrels: Qrels
    exclude_self: bool
    encoded: dict[int, tuple[dict[str, float], int]] = field(default_factory=dict)


def open_source(job: PruneSlotsJob) -> PruneSource:
    """Read all that the job names into memory; queries are encoded only where there is no sweep to take them from.

    Raises:
        ValueError: no such sweep, budget, index or split, or an index without slots.
    """
    return _of_index(job) if job.sweep is None else _of_sweep(job)


def _of_sweep(job: PruneSlotsJob) -> PruneSource:
    assert job.sweep is not None, "the caller has checked this"
    (split,) = open_splits([job.sweep])
    k_q = job.query_budget or split.manifest.query_budgets[-1]
    k_p = job.passage_budget or split.manifest.passage_budgets[-1]
    index = PassageIndex.open(str(split.index_folder(k_p)))
    ids, vectors_NH, offsets = _passages(index)
    return PruneSource(
        index=index,
        passage_ids=ids,
        vectors_NH=vectors_NH,
        offsets=offsets,
        query_ids=list(read_queries(split.folder, split.split)),
        queries=split.encoded(k_q),
        query_budget=k_q,
        qrels=swept_qrels(split, job.collection),
        exclude_self=excludes_self(split),
        encoded=_encoded(split, k_q, k_p, job.measure),
    )


def _encoded(split: SweptSplit, k_q: int, below: int, measure: str) -> dict[int, tuple[dict[str, float], int]]:
    """Return what the sweep's indexes of smaller K_p reach in dense search, where it has measured that."""
    manifest = split.manifest
    if "dense" not in manifest.modes or measure not in manifest.measures:
        return {}
    outcomes = split.outcomes("dense", measure)
    found = {}
    for k_p in manifest.passage_budgets:
        place = str(split.index_folder(k_p))
        if k_p < below and PassageIndex.exists(place):
            values = dict(zip(outcomes.queries, outcomes.at(Budget(k_q, k_p)).tolist(), strict=True))
            found[k_p] = (values, _count_vectors(PassageIndex.open(place)))
    return found


def _of_index(job: PruneSlotsJob) -> PruneSource:
    from diffretriever.encoders import load_encoder

    assert job.index is not None, "the config has checked this"
    assert job.collection is not None, "the config has checked this"
    index = PassageIndex.open(job.index)
    retriever = index.manifest.retriever
    if not isinstance(retriever, MaskedRetriever):
        raise ValueError(f"{job.index} is of the {retriever.method} method, which has no slots to prune")
    collection = open_collection(job.collection)
    asked, qrels = collection.queries(job.split), collection.qrels(job.split)
    k_q = job.query_budget or retriever.budget.query
    encoder = load_encoder(with_places(retriever, job.backbone, job.adapter), job.device)
    check_same(index.manifest, manifest_of(encoder), index.uri)
    ids, vectors_NH, offsets = _passages(index)
    return PruneSource(
        index=index,
        passage_ids=ids,
        vectors_NH=vectors_NH,
        offsets=offsets,
        query_ids=[query.id for query in asked],
        queries=encoder.encode_queries([query.text for query in asked], [k_q] * len(asked)),
        query_budget=k_q,
        qrels=qrels,
        exclude_self=job.exclude_self,
    )


def _passages(index: PassageIndex) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return ids, vectors float16 [N, H] and offsets int64 [P + 1] of all passages that have vectors."""
    ids: list[str] = []
    parts, counts = [], []
    for batch in finite_rows(index.uri, index.batches(["id", "reps"], _BATCH_ROWS)):
        vectors_NH, offsets = read_vectors(batch)
        ids += batch.column("id").to_pylist()
        parts.append(vectors_NH)
        counts.append(np.diff(offsets))
    if not ids:
        raise ValueError(f"{index.uri} holds no passages: encode some first")
    return ids, np.concatenate(parts), np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)


def _count_vectors(index: PassageIndex) -> int:
    # Every vector has its slot word, and those are far smaller to read.
    batches = index.batches(["slot_tokens"], _BATCH_ROWS)
    return sum(len(batch.column("slot_tokens").flatten()) for batch in batches)

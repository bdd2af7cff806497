"""The evaluation of averaged slots over the index of their MaxSim row.

Legend: Q queries, P passages of a batch, M query vectors, H hidden size.
"""

from __future__ import annotations

import numpy as np
import torch

from diffretriever.collections import Query, Run, open_collection, write_run
from diffretriever.encoders import load_encoder
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.representations import read_vectors
from diffretriever.evaluation.measures import evaluate
from diffretriever.evaluation.report import Evaluation, write_evaluation
from diffretriever.index.finite import finite_rows
from diffretriever.index.table import PassageIndex, check_same, manifest_of
from diffretriever.scoring.pooled_slots import pooled_slot_scores
from diffretriever.scoring.topk import TopK
from schemas.evaluate import EvaluateJob
from schemas.retriever import is_neural

_BATCH_ROWS = 4096


def evaluate_pooled_slots(job: EvaluateJob, command: str) -> None:
    """Do what `evaluate_job` does, by the inner product of averaged slots in place of MaxSim; dense scores only.

    Raises:
        ValueError: no such index, collection or split, or the backbone found is not the one that made the index.
    """
    assert job.collection is not None, "an evaluation of an index has a collection"
    collection = open_collection(job.collection)
    queries, qrels = collection.queries(job.split), collection.qrels(job.split)
    index = PassageIndex.open(job.index)
    assert is_neural(index.manifest.retriever), "only rows of slots are averaged"
    encoder = load_encoder(index.manifest.retriever, job.device)
    check_same(index.manifest, manifest_of(encoder), index.uri)
    run = _search(index, encoder, queries, job.top_k)
    results = {"dense": evaluate(run, qrels, job.measures)}
    write_run(job.output / "dense.trec", ((query, list(hits.items())) for query, hits in run.items()), "dense")
    evaluation = Evaluation(
        retriever=f"{index.manifest.title}, slots averaged",
        command=command,
        config={**job.model_dump(mode="json"), "retriever": index.manifest.retriever.model_dump(mode="json")},
        collection=collection.name,
        split=job.split,
        fingerprint=index.manifest.fingerprint,
        rows=len(index),
        query_texts={query.id: query.text for query in queries},
    )
    write_evaluation(job.output, evaluation, results)


def _search(index: PassageIndex, encoder: Encoder, queries: list[Query], top_k: int) -> Run:
    represented = encoder.encode_queries([query.text for query in queries])
    vectors_MH = torch.from_numpy(represented.vectors_MH.astype(np.float32))
    ranking = TopK(len(queries), top_k)
    for batch in finite_rows(index.uri, index.batches(["id", "reps"], _BATCH_ROWS)):
        passages_NH, offsets = read_vectors(batch)
        passages_NH = passages_NH.astype(np.float32)
        scores_QP = pooled_slot_scores(vectors_MH, represented.offsets, torch.from_numpy(passages_NH), offsets)
        ranking.add(scores_QP.numpy(), batch.column("id").to_pylist())
    return {query.id: dict(hits) for query, hits in zip(queries, ranking.results(), strict=True)}

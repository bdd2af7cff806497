"""The evaluation of averaged slots over the index of their MaxSim row."""

from __future__ import annotations

from diffretriever.collections import Run, open_collection, write_run
from diffretriever.encoders import load_encoder
from diffretriever.evaluation.evaluate import with_measures
from diffretriever.evaluation.measures import evaluate
from diffretriever.evaluation.report import Evaluation, write_evaluation
from diffretriever.index.manifest import check_same, manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.presets import system_name
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.retriever import is_neural
from diffretriever.search.dense.averaged import AveragedSlots


def evaluate_pooled_slots(job: EvaluateJob, command: str) -> None:
    """Do what `evaluate_job` does, by the inner product of averaged slots in place of MaxSim; dense scores only.

    Raises:
        ValueError: no such index, collection or split, an index without vectors, or the backbone found is not the one
            that made the index.
    """
    assert job.collection is not None, "an evaluation of an index has a collection"
    collection = open_collection(job.collection)
    job = with_measures(job, collection.name)
    queries, qrels = collection.queries(job.split), collection.qrels(job.split)
    index = PassageIndex.open(job.index)
    if not is_neural(index.manifest.retriever):
        raise ValueError(f"{index.uri} is of the bm25 method: it has no slots to average")
    encoder = load_encoder(index.manifest.retriever, job.device)
    check_same(index.manifest, manifest_of(encoder), index.uri)
    hits = AveragedSlots(index).search(encoder.encode_queries([query.text for query in queries]), job.top_k)
    run = Run([query.id for query in queries], hits)
    results = {"dense": evaluate(run, qrels, job.measures)}
    write_run(job.output / "dense.trec", [run], f"{system_name(index.manifest)}.pooled-slots")
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

"""Run a plan: encode the missing indexes, evaluate the missing results.

The job's output folder has `indexes/KEY-COLLECTION`, with `finished.json` once it is complete, and
`evaluations/PROTOCOL/KEY-SET-SPLIT`, a report like that of evaluate.py. A compressed copy is in
`indexes/KEY-COLLECTION-product2` and its evaluation in `…-compressed`, with scores and vector sizes before and after:
bf16 under zstd at level 3, as the authors' `shard_io.py` stores them, and the codes with their codec.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import torch
import yaml

from diffretriever.collections import Run, open_collection, write_run
from diffretriever.core.files import file_size, is_file, write_text
from diffretriever.core.ledger import Ledger
from diffretriever.evaluation.evaluate import evaluate_job, with_measures
from diffretriever.evaluation.measures import EvaluationResult, evaluate
from diffretriever.evaluation.report import evaluation_report, index_facts, write_evaluation
from diffretriever.index.rewrite import sample_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_file
from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.compress import compress_index
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.executor import few_passages, runs_here
from diffretriever.presets import system_name
from diffretriever.schemas.compress import CompressJob
from diffretriever.schemas.encode import NO_METADATA, EncodeJob
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.retriever import is_neural
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.settings import RayConfig
from diffretriever.search import encoder_of
from diffretriever.search.dense.averaged import AveragedSlots
from diffretriever.studies.budgets.pruning import count_vectors
from diffretriever.studies.reproduction.config import COMPRESSED, STORAGE_FILE, UNCOMPRESSED, IndexStorage, ReproduceJob
from diffretriever.studies.reproduction.plan import Plan, Task
from diffretriever.studies.reproduction.report import read_results
from diffretriever.studies.reproduction.sizes import BF16, CODEC

_ZSTD_LEVEL = 3
_SAMPLE = 4096


def run_plan(plan: Plan, job: ReproduceJob, command: str, log: Callable[[str], None]) -> dict[Path | StorePath, str]:
    """Run what is ready; return results folder → reason for each task that a `ValueError` stopped."""
    todo = [[task for task in tasks if not task.is_done] for tasks in plan.tasks().values()]
    failed: dict[Path | StorePath, str] = {}
    with ExitStack() as session:
        if any(_needs_ray(task, job) for tasks in todo for task in tasks):
            session.enter_context(ray_session())
        for tasks in filter(None, todo):
            failed |= _run_index(tasks, job, command, log)
    return failed


def _run_index(
    tasks: list[Task], job: ReproduceJob, command: str, log: Callable[[str], None]
) -> dict[Path | StorePath, str]:
    first = tasks[0]
    if not first.is_indexed:
        log(f"encoding for {first.label}")
        try:
            _encode(first, job)
        except ValueError as error:
            log(f"  failed: {error}")
            return dict.fromkeys((task.results for task in tasks), str(error))
    failed = {}
    for task in tasks:
        log(f"evaluating {task.label}")
        try:
            _evaluate(task, job, command)
        except ValueError as error:
            log(f"  failed: {error}")
            failed[task.results] = str(error)
    return failed


def _evaluate(task: Task, job: ReproduceJob, command: str) -> None:
    evaluation = EvaluateJob(
        index=str(task.index),
        collection=task.queries.source,
        split=task.queries.split,
        output=task.results,
        **task.search,
        # The authors' code leaves a query's own document in (ArguAna, Quora), and the paper says nothing of it.
        exclude_self=False,
    )
    if task.measured == "pooled-slots":
        evaluate_pooled_slots(evaluation, command)
    elif task.measured == COMPRESSED:
        if not is_file(task.uncompressed / "metrics.json"):
            evaluate_job(evaluation.model_copy(update={"output": task.uncompressed}), command)
        before = read_results(task.uncompressed)[UNCOMPRESSED]
        evaluate_compressed(evaluation, before, command)
    else:
        evaluate_job(evaluation, command)


def _needs_ray(task: Task, job: ReproduceJob) -> bool:
    return not task.is_indexed and not runs_here(job.encoding, small=few_passages(open_collection(task.queries.source)))


def _encode(task: Task, job: ReproduceJob) -> None:
    retriever = task.index.parent / f"{task.index.name}.yaml"
    write_text(retriever, yaml.safe_dump(task.retriever.model_dump(mode="json"), sort_keys=False))
    shared = job.model_dump(include=set(RayConfig.model_fields))
    summary = encode_collection(
        EncodeJob(
            **shared,
            collection=task.queries.source,
            metadata=NO_METADATA,
            retriever=str(retriever),
            index=str(task.index),
            # Public collections have empty passages; the report says how many were set aside.
            on_bad_input="quarantine",
        )
    )
    Ledger(task.index).put(task.summary.name, f"{summary.model_dump_json(indent=2)}\n".encode())


def evaluate_pooled_slots(job: EvaluateJob, command: str) -> None:
    """Evaluate dense scores as `evaluate_job` does, by the inner product of averaged slots in place of MaxSim."""
    assert job.collection is not None, "an evaluation of an index has a collection"
    collection = open_collection(job.collection)
    job = with_measures(job, collection.name)
    queries, qrels = collection.queries(job.split), collection.qrels(job.split)
    index = PassageIndex.open(job.index)
    if not is_neural(index.manifest.retriever):
        raise ValueError(f"{index.uri} is of the bm25 method: it has no slots to average")
    encoder = encoder_of(index, job.search_options)
    search = AveragedSlots(index, SearchOptions(index=index.uri), encoder.facts.device)
    hits = search.search(encoder.encode_queries([query.text for query in queries]), job.top_k)
    run = Run([query.id for query in queries], hits)
    results = {"dense": evaluate(run, qrels, job.measures)}
    write_run(job.output / "dense.trec", [run], f"{system_name(index.manifest)}.pooled-slots")
    texts = {query.id: query.text for query in queries}
    facts = index_facts(index, job) | {"retriever": f"{index.manifest.title}, slots averaged"}
    report = evaluation_report(results, command=command, collection=collection.name, **facts)
    write_evaluation(job.output, report, results, texts)


def evaluate_compressed(job: EvaluateJob, before: EvaluationResult, command: str) -> None:
    """Compress a copy of the job's index and write its dense scores and sizes next to those of the index, `before`."""
    copy = f"{job.index.rstrip('/')}-{CODEC}"
    if not PassageIndex.exists(copy):
        PassageIndex.open(job.index).clone(copy)
    compress_index(CompressJob.model_validate({"index": copy, "codec": CODEC}))
    own = job.model_copy(update={"index": copy, "modes": (UNCOMPRESSED,), "output": job.output / COMPRESSED})
    found = evaluate_job(own, command)[UNCOMPRESSED]
    results = {UNCOMPRESSED: before, COMPRESSED: found}
    index = PassageIndex.open(copy)
    write_text(job.output / STORAGE_FILE, storage_of(PassageIndex.open(job.index), index).model_dump_json(indent=2))
    report = evaluation_report(results, command=command, collection=job.collection, **index_facts(index, own))
    write_evaluation(job.output, report, results)


def storage_of(before: PassageIndex, after: PassageIndex) -> IndexStorage:
    """Return the bytes of the vectors of an index and of its compressed copy."""
    codec = after.manifest.codec
    assert codec is not None, "the copy is compressed"
    assert before.manifest.hidden_size is not None, "so the index has vectors"
    vectors = count_vectors(before)
    raw = vectors * before.manifest.hidden_size * BF16
    sample_SH = sample_of(before, _SAMPLE)
    data = torch.from_numpy(sample_SH).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    share = len(pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(data)) / len(data)
    codes = vectors * codec.width + file_size(codec_file(after.uri, codec.digest))
    return IndexStorage(vectors=vectors, raw=raw, zstd=round(share * raw), codes=codes)

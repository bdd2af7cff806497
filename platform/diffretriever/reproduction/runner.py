"""Runs a plan: encode what is not indexed, evaluate what is not measured, nothing twice.

Everything lies under the job's output folder. `indexes/KEY-COLLECTION` is an index; `finished.json` in it says that
the encoding came to its end, and a job that was killed before goes on in it. `evaluations/PROTOCOL/KEY-SET-SPLIT` is a
report like that of evaluate.py; tables that are not the paper's have no protocol. `indexes/KEY-COLLECTION-residual2` is
an index compressed, whose evaluation lies in `…-compressed`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import yaml

from diffretriever.collections import open_collection
from diffretriever.evaluation.evaluate import evaluate_job
from diffretriever.files import is_file, write_text
from diffretriever.ledger import Ledger
from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.encode import encode_collection
from diffretriever.pipelines.few import is_few
from diffretriever.reproduction.compressed import evaluate_compressed
from diffretriever.reproduction.plan import Plan, Task
from diffretriever.reproduction.pooled_search import evaluate_pooled_slots
from diffretriever.reproduction.report import read_results
from diffretriever.schemas.encode import NO_METADATA, EncodeJob
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.schemas.places import StorePath
from diffretriever.schemas.reproduce import COMPRESSED, UNCOMPRESSED, ReproduceJob
from diffretriever.schemas.settings import RayConfig


def run_plan(plan: Plan, job: ReproduceJob, command: str, log: Callable[[str], None]) -> dict[Path | StorePath, str]:
    """Run what is ready, and go on where one retriever fails for a reason that a user can mend.

    Args:
        plan: of `job`.
        job: its Ray settings are used for encoding.
        command: the command line, for the reports.
        log: takes a line for each step.

    Returns:
        Results folder of each task that failed → why.
    """
    todo = [[task for task in tasks if not task.is_done] for tasks in plan.tasks().values()]
    failed: dict[Path | StorePath, str] = {}
    with ExitStack() as session:
        if any(_needs_ray(task, job) for tasks in todo for task in tasks):
            session.enter_context(ray_session(job))
        for tasks in filter(None, todo):
            failed |= _run_index(tasks, job, command, log)
    return failed


def _run_index(
    tasks: list[Task], job: ReproduceJob, command: str, log: Callable[[str], None]
) -> dict[Path | StorePath, str]:
    """Run the tasks of one index; return those that failed."""
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
        evaluate_compressed(evaluation, before, job.ray_address, command)
    else:
        evaluate_job(evaluation, command)


def _needs_ray(task: Task, job: ReproduceJob) -> bool:
    """Whether the task's passages are to be encoded on Ray: few are encoded in this process."""
    return not task.is_indexed and not is_few(job, open_collection(task.queries.source))


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

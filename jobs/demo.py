"""A meaningful result from nothing: three retrievers on the built-in collection, compared."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from _entry import absolute_place, run

from schemas.encode import EncodeJob
from schemas.evaluate import DemoJob, EvaluateJob
from schemas.places import StorePath, as_place

if TYPE_CHECKING:
    from diffretriever.evaluation.measures import EvaluationResult

SYSTEMS = {"BM25": "bm25", "MiniLM mean-pooled": "minilm-pooled", "DiffRetriever MiniLM": "diffretriever-minilm"}


def main(config: DemoJob) -> None:
    """Encode, search and evaluate with each retriever; print the table and where the report lies."""
    from diffretriever.evaluation.comparison import comparison_table, write_comparison
    from diffretriever.pipelines.cluster import ray_session

    output = as_place(absolute_place(config.output, "--output"))
    command = shlex.join(["python", *sys.argv])
    with ray_session(config):
        indexes = {name: _encode(config, preset, output / "indexes" / preset) for name, preset in SYSTEMS.items()}
    results = {}
    for name, index in indexes.items():
        results[name] = _evaluate(config, index, output / "evaluations" / index.name, command)
    write_comparison(output, f"{config.collection} ({config.split})", results, command=command)
    print(f"\n{comparison_table(results)}\n\nreport: {output / 'comparison.md'}")
    print(f'ask it something: python jobs/search.py --index {index} --query "how do I copy a file?"')


def _encode(config: DemoJob, preset: str, index: Path | StorePath) -> Path | StorePath:
    from diffretriever.pipelines.encode import encode_collection

    shared = config.model_dump(include=set(EncodeJob.model_fields) & set(DemoJob.model_fields))
    summary = encode_collection(EncodeJob(**{**shared, "retriever": preset, "index": str(index)}))
    print(f"{preset}: {summary.rows:,} passages indexed, {summary.seconds:.0f} s", flush=True)
    return index


def _evaluate(
    config: DemoJob, index: Path | StorePath, output: Path | StorePath, command: str
) -> dict[str, EvaluationResult]:
    from diffretriever.evaluation.evaluate import evaluate_job

    job = EvaluateJob(index=str(index), collection=config.collection, split=config.split, output=output)
    return evaluate_job(job, command)


if __name__ == "__main__":
    run(DemoJob, main)

"""Batch searches and sweeps, killed and given again: the same runs, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.attack.killed import KilledJobAttack, different_files, write_model
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.search.accelerate import accelerate
from tests.pipelines.corpora import WORDS
from tests.pipelines.sweep_cases import make_job
from tests.serving.serving_cases import random_encoder, small_index

_QUERIES = 12


class BatchSearchAttack(KilledJobAttack):
    """Kill `jobs/batch_search.py`."""

    name = "batch_search"
    script = "batch_search"

    def prepare(self, folder: Path) -> None:
        """Write an index of three fragments, and queries."""
        index = small_index(random_encoder(folder / "llada"), str(folder / "index"))
        accelerate(AccelerateJob(index=index.uri))
        texts = [f"{WORDS[n % len(WORDS)]} {WORDS[(n + 3) % len(WORDS)]}" for n in range(_QUERIES)]
        lines = [json.dumps({"_id": f"q{number}", "text": text}) for number, text in enumerate(texts)]
        (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", "utf-8")

    def flags(self, inputs: Path, output: Path) -> list[str]:
        """Search by all ways, a few queries at a time, so that there are many parts."""
        options = {
            "--index": inputs / "index",
            "--queries": inputs / "queries.jsonl",
            "--output": output,
            "--modes": "dense,sparse,hybrid,bm25",
            "--top-k": 20,
            "--queries-at-once": 2,
            "--encoders": 1,
            "--ray-address": "local",
        }
        return [str(part) for pair in options.items() for part in pair]

    def difference(self, expected: Path, output: Path) -> str | None:
        """Compare the runs."""
        return different_files(expected, output, ["*.trec"])


class SweepAttack(KilledJobAttack):
    """Kill `jobs/sweep_budgets.py`."""

    name = "sweeps"
    script = "sweep_budgets"

    def prepare(self, folder: Path) -> None:
        """Write a collection, a random model and the job's config."""
        write_model(folder)
        job = make_job(folder, folder / "llada")
        (folder / "sweep.yaml").write_text(job.to_yaml(), "utf-8")

    def flags(self, inputs: Path, output: Path) -> list[str]:
        """Sweep 2 x 2 budgets."""
        places = ["--collection", str(inputs / "corpus"), "--retriever", str(inputs / "retriever.yaml")]
        return ["--config", str(inputs / "sweep.yaml"), *places, "--output", str(output), "--ray-address", "local"]

    def difference(self, expected: Path, output: Path) -> str | None:
        """Compare runs and measures."""
        return different_files(expected, output, ["*/runs/*/*.trec", "*/per_query.parquet"])

"""A small sweep over a random checkpoint, and what its results are held against."""

from __future__ import annotations

import json
from pathlib import Path

from diffretriever.schemas.sweep import SweepJob, SweepMode
from tests.pipelines.corpora import WORDS, line, write_corpus

MODES: tuple[SweepMode, ...] = ("dense", "sparse", "hybrid", "pooled-slots")
# Query p3 has a passage's id: that passage is none of its hits.
TEXTS = {
    "test": {f"q{n}": f"{WORDS[n]} {WORDS[n + 3]}" for n in range(5)},
    "train": {"p3": "slot index", "q9": "lance"},
}


def make_job(folder: Path, checkpoint: Path) -> SweepJob:
    """Write a collection of 40 passages with two splits; return the job that sweeps 2 x 2 budgets on it."""
    collection = write_corpus(folder / "corpus", [line(i) for i in range(40)])
    asked = {query: text for texts in TEXTS.values() for query, text in texts.items()}
    rows = [json.dumps({"_id": query, "text": text}) for query, text in asked.items()]
    (collection / "queries.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    for split, texts in TEXTS.items():
        judged = [f"{query}\tp{7 * number % 40}\t1" for number, query in enumerate(texts, start=1)]
        qrels = "\n".join(["query-id\tcorpus-id\tscore", *judged])
        (collection / "qrels" / f"{split}.tsv").write_text(qrels + "\n", "utf-8")
    return SweepJob(
        collection=str(collection),
        output=folder / "swept",
        retriever="diffretriever-llada",
        backbone=str(checkpoint),
        encoders=1,
        query_budgets=(3, 1),
        passage_budgets=(1, 2),
        modes=MODES,
        exclude_self=True,
    )


def stamps(folder: Path, pattern: str) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.glob(pattern)}


def runs(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.glob("*/runs/*/*.trec")}

"""A meaningful result from nothing: three retrievers on the built-in collection, compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from _entry import command, run

from diffretriever.schemas.encode import EncodeJob
from diffretriever.schemas.evaluate import DemoJob, EvaluateJob, EvaluationReport
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.settings import RayConfig

if TYPE_CHECKING:
    from diffretriever.evaluation.measures import EvaluationResult

SYSTEMS: dict[str, tuple[str, tuple[Mode, ...]]] = {
    "BM25": ("bm25", ()),
    "MiniLM mean-pooled": ("minilm-pooled", ("dense+bm25",)),
    "DiffRetriever MiniLM": ("diffretriever-minilm", ()),
}
"""Rows of the table: the preset of an index, and its modes between its own scores and its default."""

_SPLIT = "test"


def main(config: DemoJob) -> None:
    """Encode, search and evaluate with each retriever; print the table and the report's path."""
    from diffretriever.collections import open_collection
    from diffretriever.core.files import read_text
    from diffretriever.evaluation.comparison import compared
    from diffretriever.evaluation.comparison_page import comparison_table, labelled, write_comparison
    from diffretriever.pipelines.encode import encode_collection
    from diffretriever.pipelines.executor import executor_for, few_passages

    modes = {preset: _modes(preset, further) for preset, further in SYSTEMS.values()}
    encoding = {
        preset: EncodeJob(collection=config.collection, retriever=preset, index=str(config.output / "indexes" / preset))
        for preset in modes
    }
    collection = open_collection(config.collection)
    # Nothing is encoded for a split that is not there.
    collection.qrels(_SPLIT)
    with executor_for(RayConfig(), small=few_passages(collection)):
        for preset, job in encoding.items():
            summary = encode_collection(job)
            print(f"{preset}: {summary.rows:,} passages indexed, {summary.seconds:.0f} s", flush=True)
    measured = {}
    for preset, job in encoding.items():
        measured[preset] = _evaluate(config, job.index, modes[preset], config.output / "evaluations" / preset)
    results = {name: {mode: measured[preset][mode] for mode in modes[preset]} for name, (preset, _) in SYSTEMS.items()}
    reports = {
        name: EvaluationReport.model_validate_json(read_text(config.output / "evaluations" / preset / "metrics.json"))
        for name, (preset, _) in SYSTEMS.items()
    }
    conditions = labelled({name: report.conditions for name, report in reports.items()})
    report = compared(f"{config.collection} ({_SPLIT})", results, command(), conditions=conditions)
    write_comparison(config.output, report, results)
    print(f"\n{comparison_table(results)}\n\nreport: {config.output / 'comparison.md'}")
    print(f'ask it something: python jobs/search.py --index {job.index} --query "how do I copy a file?"')


def _modes(preset: str, further: tuple[Mode, ...]) -> tuple[Mode, ...]:
    from diffretriever.presets import load_retriever

    retriever = load_retriever(preset)
    return tuple(dict.fromkeys((*retriever.modes, *further, retriever.ranked_by)))


def _evaluate(
    config: DemoJob, index: str, modes: tuple[Mode, ...], output: Path | StorePath
) -> dict[str, EvaluationResult]:
    from diffretriever.evaluation.evaluate import evaluate_job

    source = {"index": index, "collection": config.collection, "split": _SPLIT}
    return evaluate_job(EvaluateJob(**source, modes=modes, output=output), command())


if __name__ == "__main__":
    run(DemoJob, main)

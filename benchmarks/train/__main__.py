"""Fine-tuning against the Trainer of transformers with PEFT: the same texts, batches, loss, precision and LoRA."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.train.figures import COLUMNS, Setting, measured
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.training import Recipe


class TrainBenchmark(Benchmark):
    """Measure training steps, without Ray, against transformers' Trainer."""

    retriever: str = "diffretriever-minilm-untrained"
    """Masked retriever to train: a preset, or a YAML file."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of its weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where; on a CPU all loops have one thread."""
    batch_queries: PositiveInt = 8
    """Queries of a step."""
    queries_per_device: PositiveInt = 4
    """Queries that run at a time."""
    hard_negatives: NonNegativeInt = 3
    """Negatives of each."""
    steps: PositiveInt = 2
    """Steps that are measured; the one before them is not."""
    repeats: PositiveInt = 3
    """Measurements of each loop; the ratio is the median."""
    collection: str = "pydoc"
    """Whose passages are learned."""


def main(config: TrainBenchmark) -> None:
    """Measure, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    with TemporaryDirectory() as folder:
        file, what = _of_preset(config, Path(folder))
        results = [measured(_setting(config, file, checkpointing), config.repeats) for checkpointing in (False, True)]
    table = format_table([result.row() for result in results], COLUMNS)
    config.report(about, f"{what}\n\n{table}", results=[result.model_dump() for result in results])


def _of_preset(config: TrainBenchmark, folder: Path) -> tuple[Path, str]:
    """Return the retriever's file, in the precision asked for, and what is measured, for people."""
    from diffretriever.presets import load_retriever

    retriever = load_retriever(config.retriever)
    if not isinstance(retriever, MaskedRetriever):
        raise SystemExit(f"--retriever {config.retriever}: take one of the masked method, whose slots are what is read")
    place = retriever.backbone.model_copy(update={"dtype": config.dtype})
    what = (
        f"{config.retriever} {retriever.budget}, {config.dtype}, {config.device}: steps of {config.batch_queries} "
        f"queries with {1 + config.hard_negatives} passages, {config.queries_per_device} queries at a time"
    )
    file = folder / "retriever.yaml"
    # JSON is YAML.
    file.write_text(retriever.model_copy(update={"backbone": place}).model_dump_json(), encoding="utf-8")
    return file, what


def _setting(config: TrainBenchmark, retriever: Path, checkpointing: bool) -> Setting:  # noqa: FBT001
    recipe = Recipe(
        batch_queries=config.batch_queries,
        queries_per_device=config.queries_per_device,
        hard_negatives=config.hard_negatives,
        max_steps=1 + config.steps,
        gradient_checkpointing=checkpointing,
    )
    return Setting(
        retriever=retriever, dtype=config.dtype, recipe=recipe, collection=config.collection, device=config.device
    )


if __name__ == "__main__":
    run(TrainBenchmark, main)

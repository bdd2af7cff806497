"""Fine-tuning against the Trainer of transformers with PEFT: the same texts, batches, loss, precision and LoRA."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.train.figures import (
    COLUMNS,
    COLUMNS_STRATEGIES,
    Figures,
    Setting,
    measured,
    strategies,
)
from diffretriever.schemas.retriever import (
    MaskedRetriever,
)
from diffretriever.schemas.training import Recipe


class TrainBenchmark(Benchmark):
    """Measure training steps, without Ray, against transformers' Trainer; or ZeRO-2 against plain data parallelism."""

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
    strategies: bool = False
    """Measure DeepSpeed's ZeRO-2 against plain data parallelism instead."""
    workers: PositiveInt = 1
    """Of --strategies, each a process; on a GPU of its own where there are GPUs."""


def main(config: TrainBenchmark) -> None:
    """Measure, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    measure = _strategies if config.strategies else _against_plain
    with TemporaryDirectory() as folder:
        results, columns, what = measure(config, Path(folder))
    table = format_table([result.row() for result in results], columns)
    config.report(about, f"{what}\n\n{table}", results=[result.model_dump() for result in results])


def _against_plain(config: TrainBenchmark, folder: Path) -> tuple[list[Figures], tuple[str, ...], str]:
    file, what = _of_preset(config, folder)
    results = []
    for checkpointing in (False, True):
        recipe = _recipe(config, config.queries_per_device, gradient_checkpointing=checkpointing)
        results.append(measured(_setting(config, file, config.dtype, recipe), config.repeats))
    return results, COLUMNS, what


def _strategies(config: TrainBenchmark, folder: Path) -> tuple[list[Figures], tuple[str, ...], str]:
    if find_spec("deepspeed") is None:
        raise SystemExit("--strategies: deepspeed is not installed: `pip install 'diffretriever[train]'`")
    file, what = _of_preset(config, folder)
    recipe = _recipe(config, config.queries_per_device)
    result = strategies(_setting(config, file, config.dtype, recipe), config.workers, config.repeats)
    return [result], COLUMNS_STRATEGIES, what


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
    return _written(folder, retriever.model_copy(update={"backbone": place})), what


def _recipe(config: TrainBenchmark, at_a_time: int, **changes: Any) -> Recipe:
    return Recipe(
        batch_queries=config.batch_queries,
        queries_per_device=at_a_time,
        hard_negatives=config.hard_negatives,
        max_steps=1 + config.steps,
        strategy="ddp",
        **changes,
    )


def _setting(config: TrainBenchmark, retriever: Path, dtype: str, recipe: Recipe) -> Setting:
    return Setting(retriever=retriever, dtype=dtype, recipe=recipe, collection=config.collection, device=config.device)


def _written(folder: Path, retriever: MaskedRetriever) -> Path:
    file = folder / "retriever.yaml"
    # JSON is YAML.
    file.write_text(retriever.model_dump_json(), encoding="utf-8")
    return file


if __name__ == "__main__":
    run(TrainBenchmark, main)

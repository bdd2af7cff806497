"""Fine-tuning against the Trainer of transformers with PEFT: the same texts, batches, loss, precision and LoRA."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from benchmarks.measuring import Benchmark, header, run
from benchmarks.train.figures import (
    COLUMNS,
    COLUMNS_7B,
    Figures,
    Figures7B,
    Setting,
    measured,
    utilisation,
)
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import (
    BackboneConfig,
    ContentWordsConfig,
    MaskedRetriever,
)
from diffretriever.schemas.training import Recipe

DREAM_7B: dict[str, Any] = {
    "hidden_size": 3584,
    "layers": 28,
    "heads": 28,
    "kv_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152_064,
    "shards": 8,
}
"""The shape of Dream 7B."""


class TrainBenchmark(Benchmark):
    """Measure training steps, without Ray, against transformers' Trainer; with --gpu-7b a random Dream 7B on a GPU."""

    retriever: str = "diffretriever-minilm-untrained"
    """Masked retriever to train: a preset, or a YAML file."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of its weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where; on a CPU all loops have one thread."""
    batch_queries: PositiveInt = 8
    """Queries of a step; with --gpu-7b twice the queries that run at a time."""
    queries_per_device: PositiveInt = 4
    """Queries that run at a time; with --gpu-7b always 8, as in the paper."""
    hard_negatives: NonNegativeInt = 3
    """Negatives of each; with --gpu-7b always 15, as in the paper."""
    steps: PositiveInt = 2
    """Steps that are measured; the one before them is not."""
    repeats: PositiveInt = 3
    """Measurements of each loop; the ratio is the median."""
    collection: str = "pydoc"
    """Whose passages are learned."""
    gpu_7b: bool = False
    """Train a random Dream of 7B parameters in bfloat16 on a GPU instead, and state the model FLOPs utilisation."""
    peak_tflops: PositiveFloat = 989
    """What the GPU can do in bfloat16, 10^12 operations a second; the default is an H100's data sheet, dense."""


def main(config: TrainBenchmark) -> None:
    """Measure, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    results: list[Figures] | list[Figures7B]
    with TemporaryDirectory() as folder:
        if config.gpu_7b:
            results, columns, what = _dream_7b(config, Path(folder))
        else:
            results, columns, what = _against_plain(config, Path(folder))
    table = format_table([result.row() for result in results], columns)
    config.report(about, f"{what}\n\n{table}", results=[result.model_dump() for result in results])


def _against_plain(config: TrainBenchmark, folder: Path) -> tuple[list[Figures], tuple[str, ...], str]:
    from diffretriever.presets import load_retriever

    retriever = load_retriever(config.retriever)
    if not isinstance(retriever, MaskedRetriever):
        raise SystemExit(f"--retriever {config.retriever}: take one of the masked method, whose slots are what is read")
    place = retriever.backbone.model_copy(update={"dtype": config.dtype})
    file = _written(folder, retriever.model_copy(update={"backbone": place}))
    results = []
    for negatives in ("gathered", "cached"):
        for checkpointing in (False, True):
            recipe = _recipe(
                config, config.queries_per_device, negatives=negatives, gradient_checkpointing=checkpointing
            )
            results.append(measured(_setting(config, file, config.dtype, recipe), config.repeats))
    what = (
        f"{config.retriever} {retriever.budget}, {config.dtype}, {config.device}: steps of {config.batch_queries} "
        f"queries with {1 + config.hard_negatives} passages, {config.queries_per_device} queries at a time"
    )
    return results, COLUMNS, what


def _dream_7b(config: TrainBenchmark, folder: Path) -> tuple[list[Figures7B], tuple[str, ...], str]:
    import torch

    from diffretriever.random_models.checkpoints import write_random_checkpoint

    if config.device == "cpu" or not torch.cuda.is_available():
        raise SystemExit(
            "--gpu-7b needs a GPU, and torch sees none: run it where there is one, with CUDA's build of torch"
        )
    model = write_random_checkpoint("dream", folder / "dream", dtype="bfloat16", **DREAM_7B)
    retriever = MaskedRetriever(
        backbone=BackboneConfig(source=str(model), dtype="bfloat16"),
        budget=Budget(4, 16),
        # The random model's small tokenizer knows few whole words.
        content_words=ContentWordsConfig(subwords=True),
    )
    file = _written(folder, retriever)
    results = []
    for negatives in ("gathered", "cached"):
        recipe = _recipe(config.model_copy(update={"batch_queries": 16, "hard_negatives": 15}), 8, negatives=negatives)
        results.append(utilisation(_setting(config, file, "bfloat16", recipe), config.repeats, config.peak_tflops))
    what = (
        f"random Dream 7B q4p16, bfloat16, LoRA, {torch.cuda.get_device_name()}: steps of 16 queries with 16 passages, "
        "8 queries at a time, gradient checkpointing\n"
        "model FLOPs of a step: T (4 N + 6 n) + 12 L D sum s^2, of T tokens in texts of s, N weights of the layers' "
        "matrices, n of LoRA, L layers, width D"
    )
    return results, COLUMNS_7B, what


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

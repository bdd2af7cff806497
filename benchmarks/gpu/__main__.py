"""One command for the day a GPU is there: encoding, the encode job, a query, training, search, and equality with a CPU.

Random models of the published sizes are made on the device, so nothing is downloaded. Within its minutes it measures
what it can, in the order of `--parts`; what is left out for want of time is said.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from pydantic import PositiveFloat, PositiveInt

from benchmarks.gpu.models import Family, Size, retriever_of
from benchmarks.measuring import Benchmark, header, in_child, print_report, run
from diffretriever.schemas.training import Recipe

Part: TypeAlias = Literal["equality", "encoding", "queries", "job", "training", "search", "profile"]
Form: TypeAlias = Literal["padded", "similar", "packed", "compiled", "float8"]
Rows: TypeAlias = list[dict[str, Any]]

_LOOPS = "benchmarks.gpu.loops"
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of a name of its own is made in it)
"""Where the checkpoint for the job and the training is written, if it is there."""
_JOB_TOKENS, _JOB_SLOTS = 150, 16
_SHAPES = {
    "published": ((1_000_000, 16, 384), (100_000, 16, 3584)),
    "tiny": ((500, 16, 64), (200, 16, 128)),
}
GOALS = (
    "goals on an H100: encoding passages of 150 tokens at .75 of what dense products reach, 200 passages/s in bfloat16 "
    "and 320 in float8; the job at .92 of the bare loop; a query in 12 ms; training at .45"
)


class GpuBenchmark(Benchmark):
    """Measure a GPU, or with --size tiny a CPU, with random models of the paper's four backbones."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where."""
    size: Size = "published"
    """Of the models: those of 7 and 8 billion parameters, or ones that a CPU computes in milliseconds."""
    parts: tuple[Part, ...] = ("equality", "encoding", "queries", "job", "training", "search", "profile")
    """What is measured, in this order."""
    backbones: tuple[Family, ...] = ("dream", "llada", "qwen2", "llama3")
    """For `encoding`; the other parts take Dream, and Qwen2.5 for PromptReps."""
    forms: tuple[Form, ...] = ("padded", "similar", "packed", "compiled", "float8")
    """For `encoding`, each on top of those before it: see `loops.FORMS`."""
    lengths: tuple[PositiveInt, ...] = (75, 150, 300)
    """Mean tokens of passages, without the prompt."""
    slots: tuple[PositiveInt, ...] = (1, 4, 16)
    """K_p."""
    tokens: PositiveInt = 49_152
    """Of the passages of a measurement, prompts and slots included."""
    passages: PositiveInt = 4096
    """For `job`."""
    queries: PositiveInt = 40
    """For `queries`, as many batches of 32, too."""
    steps: PositiveInt = 2
    """For `training`, after one that is not measured."""
    minutes: PositiveFloat = 8
    """No further part begins after so many."""


def main(config: GpuBenchmark) -> None:
    """Measure part by part, print the table of each as it ends, write JSON if asked to.

    Raises:
        SystemExit: a part failed; the others are measured.
    """
    started = time.monotonic()
    about = header()
    facts = in_child(_LOOPS, "device_facts", device=config.device)
    reached = f"dense bfloat16 products reach {facts['reached TFLOP/s']:.1f} TFLOP/s"
    print_report(about, f"{facts['device']}, models: {config.size}; {reached}\n{GOALS}")
    results: dict[str, Rows] = {}
    left_out: list[str] = []
    failed: list[str] = []
    with TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        for name, measure in _measurements(config, Path(folder), facts["reached TFLOP/s"]):
            if time.monotonic() - started > 60 * config.minutes:
                left_out.append(name)
                continue
            try:
                results[name] = measure()
            except CalledProcessError:
                failed.append(name)
                continue
            print(f"\n{name}\n\n{_table(results[name])}", flush=True)
            config.write(about, facts=facts, results=results)
            sys.stderr.write(f"{name}: {time.monotonic() - started:.0f} s since the start\n")
    config.write(about, facts=facts, results=results, left_out=left_out, failed=failed)
    if left_out:
        print(f"\nleft out, the minutes were over: {', '.join(left_out)}")
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")


def _measurements(config: GpuBenchmark, folder: Path, reached: float) -> Iterator[tuple[str, Callable[[], Rows]]]:
    """Yield what each measurement is called, and what makes it; products reach so many TFLOP/s."""
    device, size, compiled = config.device, config.size, "compiled" in config.forms

    def encoding(family: str) -> Rows:
        return in_child(
            _LOOPS, "encoding", family=family, size=size, device=device, lengths=config.lengths, slots=config.slots,
            forms=config.forms, tokens=config.tokens,
        )  # fmt: skip

    for part in config.parts:
        if part == "encoding":
            for family in config.backbones:
                yield f"encoding, {family}", partial(encoding, family)
        elif part == "equality":
            yield "equality: least cosine of two vectors of a text", lambda: in_child(_LOOPS, "equality", device=device)
        elif part == "queries":
            yield (
                "queries",
                partial(in_child, _LOOPS, "queries", size=size, device=device, asked=config.queries, compiled=compiled),
            )
        elif part == "job":
            yield "encode job", lambda: _job(config, folder)
        elif part == "training":
            yield "training", lambda: _training(config, folder, reached)
        elif part == "profile":
            yield "profile", lambda: in_child(_LOOPS, "profile", size=size, device=device, compiled=compiled)
        else:
            yield "search", lambda: in_child(_LOOPS, "search", device=device, shapes=_SHAPES[size])


def _checkpoint(config: GpuBenchmark, folder: Path) -> Path:
    """Return a checkpoint of Dream, written once."""
    if not (folder / "config.json").is_file():
        in_child(_LOOPS, "checkpoint", family="dream", size=config.size, device=config.device, folder=str(folder))
    return folder


def _job(config: GpuBenchmark, folder: Path) -> Rows:
    model = str(_checkpoint(config, folder / "dream"))
    made = {"folder": model, "device": config.device, "passages": config.passages, "words": _JOB_TOKENS}
    alone, job = (in_child(_LOOPS, name, slots=_JOB_SLOTS, **made) for name in ("bare", "job"))
    rows: Rows = [{"name": "the encoder alone", **alone}, {"name": "the job", **job}]
    rows.append({"name": "ratio", "passages/s": job["passages/s"] / alone["passages/s"]})
    return rows


def _training(config: GpuBenchmark, folder: Path, reached: float) -> Rows:
    from benchmarks.train.figures import Setting

    retriever = folder / "trained.yaml"
    model = _checkpoint(config, folder / "dream")
    retriever.write_text(retriever_of("masked", model, budget="q4p16").model_dump_json(), "utf-8")
    rows: Rows = []
    published = config.size == "published"
    recipe = Recipe(
        batch_queries=16 if published else 4,
        queries_per_device=8 if published else 2,
        hard_negatives=15 if published else 1,
        max_steps=1 + config.steps,
    )
    setting = Setting(retriever=retriever, dtype="bfloat16", recipe=recipe, collection="pydoc", device=config.device)
    run_of = in_child("benchmarks.train.loops", "ours", setting=setting.model_dump(mode="json"))
    rows.append(
        {
            "name": "training",
            "tokens/s": run_of["tokens_per_second"],
            "utilisation": run_of["flops_per_second"] / 1e12 / reached,
            "peak MB": run_of["peak_mb"],
        }
    )
    return rows


def _table(rows: Rows) -> str:
    from diffretriever.evaluation.formats.tables import format_table

    columns = list(dict.fromkeys(name for row in rows for name in row))
    return format_table([[_cell(row.get(name, "")) for name in columns] for row in rows], tuple(columns))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if value >= 10 else f"{value:.4f}"
    return str(value)


if __name__ == "__main__":
    run(GpuBenchmark, main)

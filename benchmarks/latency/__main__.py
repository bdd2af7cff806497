"""The paper's latency scaling: encoding by length of the input, search by number of passages, for its four backbones.

Weights do not matter to the time: without checkpoints of one's own small random ones are timed, whose milliseconds are
no one's; the published sizes make the paper's figure. `jobs/reproduce.py --latencies` draws it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from pydantic import DirectoryPath, Field, PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run

COLUMNS = ("what", "method", "backbone", "representations", "x", "ms")
if TYPE_CHECKING:
    from diffretriever.evaluation.formats.tables import Cell
    from diffretriever.studies.reproduction.latencies import Line

_QUERY_TOKENS = 32


class System(NamedTuple):
    """A line of the figure."""

    method: str
    backbone: str
    family: str
    representations: str
    kind: str
    slots: int
    """K_q, or generated tokens."""
    vectors: int
    """Of a passage."""


SYSTEMS = tuple(
    System(method, backbone, family, representations, kind, slots, vectors)
    for method, kind, backbone, family, budgets in (
        ("PromptReps", "generated", "Qwen2.5", "qwen2", {"single": (1, 1), "multi": (4, 4), "zero-shot": (20, 20)}),
        ("PromptReps", "generated", "LLaMA3", "llama3", {"single": (1, 1), "multi": (4, 4), "zero-shot": (20, 20)}),
        ("DiffRetriever", "masked", "Dream", "dream", {"single": (1, 1), "multi": (4, 16)}),
        ("DiffRetriever", "masked", "LLaDA", "llada", {"single": (1, 1), "multi": (4, 4)}),
    )
    for representations, (slots, vectors) in budgets.items()
)


class LatencyBenchmark(Benchmark):
    """Measure encoding and search of the four backbones: 5 runs to warm up, the mean of 20."""

    backbones: dict[str, DirectoryPath] = Field(default_factory=dict)
    """NAME=FOLDER, repeatable: checkpoint of Qwen2.5, LLaMA3, Dream or LLaDA; default: a small random one."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    lengths: tuple[PositiveInt, ...] = (64, 128, 256, 512)
    """Tokens of the input, prompt included."""
    sizes: tuple[PositiveInt, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Passages."""
    hidden_size: PositiveInt = 64
    """H of the small random models; those of published sizes are searched at their own."""
    layers: PositiveInt = 2
    """Layers of the small random models."""


def main(config: LatencyBenchmark) -> None:
    """Measure every system, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table
    from diffretriever.studies.reproduction.latencies import Latencies

    about = header()
    with TemporaryDirectory() as temporary:
        lines = [line for system in SYSTEMS for line in _lines(system, config, Path(temporary))]
    rows: list[list[Cell]] = []
    for line in lines:
        rows += [[*(str(getattr(line, name)) for name in COLUMNS[:4]), point.x, point.ms] for point in line.points]
    own = f"own checkpoints of {', '.join(config.backbones)}" if config.backbones else "small random models"
    device = f"{_device_name(config.device)}, {own}"
    latencies = Latencies(device=device, query_tokens=_QUERY_TOKENS, lines=tuple(lines))
    config.report(about, format_table(rows, COLUMNS), latencies=latencies.model_dump(mode="json"))


def _lines(system: System, config: LatencyBenchmark, folder: Path) -> Iterator[Line]:
    from diffretriever.studies.reproduction.latencies import Line

    backbone = config.backbones.get(system.backbone) or _random(system, config, folder / system.family)
    values = json.loads((backbone / "config.json").read_text("utf-8"))
    hidden_size = values.get("hidden_size") or values["d_model"]
    about = {name: getattr(system, name) for name in ("method", "backbone", "representations")}
    points = in_child(
        "benchmarks.latency.loops", "measure", method=system.kind, backbone=str(backbone), slots=system.slots,
        vectors=system.vectors, hidden_size=hidden_size, lengths=list(config.lengths), sizes=list(config.sizes),
        device=config.device,
    )  # fmt: skip
    sys.stderr.write(f"{system.method} {system.backbone} {system.representations}: done\n")
    for what, line in points.items():
        yield Line.model_validate({**about, "what": what, "points": line})


def _random(system: System, config: LatencyBenchmark, folder: Path) -> Path:
    from diffretriever.testing.checkpoints import write_random_checkpoint

    if (folder / "config.json").is_file():
        return folder
    return write_random_checkpoint(system.family, folder, hidden_size=config.hidden_size, layers=config.layers)


def _device_name(device: str) -> str:
    import torch

    from diffretriever.backbones.device import resolve_device

    place = resolve_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "this machine's CPU"


if __name__ == "__main__":
    run(LatencyBenchmark, main)

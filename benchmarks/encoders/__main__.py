"""What more vectors cost: slots in one pass against tokens decoded one by one, and both against plain loops.

The two models have the same sizes and Qwen2's layers; one sees both ways (Dream's format), the other is causal. Random
weights never close the quote, so PromptReps always decodes to its cap: its most expensive case.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from pydantic import PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run

SLOTS = (1, 4, 16)
TOKENS = (1, 4, 20)
# Ours over the plain loop of the same method.
PLAIN = {"DiffRetriever": 4, "PromptReps": 4}
Measurement: TypeAlias = dict[str, float]
COLUMNS = ("system", "query ms", "over K=1", "passages/s", "of K=1")


class EncodersBenchmark(Benchmark):
    """Measure encoders on the same random backbone: query latency and passage throughput by number of vectors."""

    hidden_size: PositiveInt = 512
    """H of the random models."""
    layers: PositiveInt = 8
    """Their layers."""
    vocab_size: PositiveInt = 32_000
    """Their vocabulary."""
    queries: PositiveInt = 20
    """Queries timed one by one, after five that warm up."""
    passages: PositiveInt = 48
    """Passages of the built-in collection encoded together."""
    repeats: PositiveInt = 3
    """Rounds over all systems in turn; figures are medians."""


def main(config: EncodersBenchmark) -> None:
    """Measure every system in turn, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    with TemporaryDirectory() as temporary:
        systems = _systems(config, Path(temporary))
        rounds = [_round(systems, number + 1, config.repeats) for number in range(config.repeats)]
    medians = {
        name: {key: statistics.median(done[name][key] for done in rounds) for key in rounds[0][name]}
        for name in systems
    }
    what = f"random models: H {config.hidden_size}, {config.layers} layers, vocabulary {config.vocab_size}, float32"
    config.report(about, f"{what}\n\n{format_table(_rows(medians), COLUMNS)}", medians=medians, rounds=rounds)


def _systems(config: EncodersBenchmark, folder: Path) -> dict[str, partial[object]]:
    from diffretriever.testing.checkpoints import write_random_checkpoint

    write = partial(
        write_random_checkpoint,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=8,
        vocab_size=config.vocab_size,
    )
    backbones = {name: str(write(name, folder / name)) for name in ("dream", "qwen2")}
    counts = {"n_queries": config.queries, "n_passages": config.passages}
    measure = partial(in_child, "benchmarks.encoders.loops", "measure", **counts)
    slots, tokens = {"family": "masked", "backbone": backbones["dream"]}, {"family": "generated"}
    tokens["backbone"] = backbones["qwen2"]
    return {
        **{f"DiffRetriever K={k}": partial(measure, **slots, vectors=k, plain=False) for k in SLOTS},
        f"  plain loop K={PLAIN['DiffRetriever']}": partial(
            measure, **slots, vectors=PLAIN["DiffRetriever"], plain=True
        ),
        **{f"PromptReps N={n}": partial(measure, **tokens, vectors=n, plain=False) for n in TOKENS},
        f"  plain loop N={PLAIN['PromptReps']}": partial(measure, **tokens, vectors=PLAIN["PromptReps"], plain=True),
    }


def _round(systems: dict[str, partial[object]], number: int, of: int) -> dict[str, Measurement]:
    results: dict[str, Measurement] = {}
    for name, measure in systems.items():
        found = measure()
        assert isinstance(found, dict), "a loop returns its figures by name"
        results[name] = found
        sys.stderr.write(f"{number}/{of} {name.strip()}: {found['query_ms']:.1f} ms, {found['rate']:.1f} passages/s\n")
    return results


def _rows(medians: dict[str, Measurement]) -> list[list[str]]:
    rows = []
    for name, found in medians.items():
        if name.endswith("=1"):
            single = found
        ratios = found["query_ms"] / single["query_ms"], found["rate"] / single["rate"]
        rows.append([name, f"{found['query_ms']:.1f}", f"{ratios[0]:.2f}", f"{found['rate']:.1f}", f"{ratios[1]:.2f}"])
    return rows


if __name__ == "__main__":
    run(EncodersBenchmark, main)

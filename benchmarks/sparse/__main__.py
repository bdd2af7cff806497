"""The exact sparse search by inverted index against scipy: time of a query, memory of a posting, time to build."""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

from pydantic import Field, PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run
from benchmarks.sparse.figures import COLUMNS, Alone, Beside, Built, Figures, Law


class SparseBenchmark(Benchmark):
    """Measure the exact sparse search on made-up impacts, terms drawn by Zipf's law and evenly, on one core."""

    sizes: tuple[PositiveInt, ...] = (100_000, 500_000)
    """Passages; each size is a run of its own for each law."""
    queries: int = Field(default=200, ge=2)
    """Queries of a run."""
    today_queries: PositiveInt = 3
    """Queries timed on today's products of batches of rows, which are slow."""
    k: PositiveInt = 1000
    """Passages wanted for a query."""
    per_segment: int = Field(default=500_000, ge=5_000, multiple_of=5_000)
    """Passages of a segment."""


def main(config: SparseBenchmark) -> None:
    """Run every size and law, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    laws: tuple[Law, ...] = ("zipf", "uniform")
    figures = [_measure(config, size, law) for size in config.sizes for law in laws]
    what = f"{config.queries} queries of 22 terms, top {config.k}; passages of 59 terms, vocabulary 150,000"
    table = format_table([row for each in figures for row in each.rows()], COLUMNS)
    config.report(about, f"{what}\n\n{table}", results=[each.model_dump() for each in figures])


def _measure(config: SparseBenchmark, passages: int, law: Law) -> Figures:
    asked = {"queries": config.queries, "k": config.k}
    with TemporaryDirectory() as folder:
        given = {"folder": folder, "impacts": {"law": law, "passages": passages}}
        built = Built.model_validate(_loop("build", **given, per_segment=config.per_segment))
        alone = Alone.model_validate(_loop("alone", **given, **asked))
        beside = Beside.model_validate(_loop("beside", **given, **asked, today_queries=config.today_queries))
    sys.stderr.write(f"{passages:,} passages, {law}: done\n")
    return Figures(passages=passages, law=law, built=built, alone=alone, beside=beside)


def _loop(name: str, **arguments: object) -> object:
    return in_child("benchmarks.sparse.segments", name, **arguments)


if __name__ == "__main__":
    run(SparseBenchmark, main)

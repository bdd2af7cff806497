"""What it takes to choose the passages of a corpus that an index lacks: memory and time, by made-up ids."""

from __future__ import annotations

from pydantic import PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run

_COLUMNS = ("passages", "in the index", "hash keys, s", "choose, s", "peak, bytes a key", "kept")


class SelectionBenchmark(Benchmark):
    """Join made-up parts of a corpus with an index that holds every second passage, as an encode job does."""

    sizes: tuple[PositiveInt, ...] = (1_000_000, 10_000_000)
    """Passages; each size is a process of its own."""


def main(config: SelectionBenchmark) -> None:
    """Run every size, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    figures = [in_child("benchmarks.selection.loops", "selection", passages=size) for size in config.sizes]
    rows = [[f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in each] for each in figures]
    config.report(about, format_table(rows, _COLUMNS), results=figures)


if __name__ == "__main__":
    run(SelectionBenchmark, main)

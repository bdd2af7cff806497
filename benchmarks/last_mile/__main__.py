"""What comes after encoding: an evaluation searched, ranked, written and measured, and hybrid queries one by one."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run

_COLUMNS = ("", "")


class LastMileBenchmark(Benchmark):
    """Evaluate made-up queries, encoded already, on an index as large as that of the demo; ask them one by one."""

    passages: PositiveInt = 4729
    queries: PositiveInt = 2745
    top_k: PositiveInt = 1000
    singles: PositiveInt = 200
    """Queries that are asked one by one."""
    ids: NonNegativeInt = 1_000_000
    """Made-up ids to put in order; 0: none."""


def main(config: LastMileBenchmark) -> None:
    """Measure each in a process of its own, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about, module = header(), "benchmarks.last_mile.loops"
    made = config.model_dump(include={"passages", "queries"})
    figures: dict[str, float] = {}
    for accelerated in (False, True):
        figures |= in_child(module, "evaluation", made=made, top_k=config.top_k, accelerated=accelerated)
        figures |= in_child(module, "singles", made=made, asked=config.singles, accelerated=accelerated)
    if config.ids:
        figures |= in_child(module, "order", ids=config.ids)
    rows = [[name, f"{value:,.2f}"] for name, value in figures.items()]
    config.report(about, format_table(rows, _COLUMNS), results=figures)


if __name__ == "__main__":
    run(LastMileBenchmark, main)

"""The exact sparse search by inverted index against scipy: time of a query, memory of a posting, time to build."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field, PositiveInt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from benchmarks._common import header, in_child  # noqa: E402  (found through it)
from benchmarks._sparse_figures import COLUMNS, Alone, Beside, Built, Figures, Law  # noqa: E402
from schemas.settings import JobConfig  # noqa: E402

_SHARDED = 5_000_000


class SparseBenchmark(JobConfig):
    """Measure the exact sparse search on made-up impacts, terms drawn by Zipf's law and evenly, on one core."""

    sizes: tuple[PositiveInt, ...] = (100_000, 500_000)
    """Passages; each size is a run of its own for each law."""
    sharded: bool = False
    """Also 5,000,000 passages by Zipf's law, without scipy beside them; some 3 GB of disk for a while."""
    queries: int = Field(default=200, ge=2)
    """Queries of a run."""
    today_queries: PositiveInt = 3
    """Queries timed on today's products of batches of rows, which are slow."""
    k: PositiveInt = 1000
    """Passages wanted for a query."""
    per_segment: int = Field(default=500_000, ge=25_000, multiple_of=25_000)
    """Passages of a segment."""
    output: Path | None = None
    """JSON file for all figures."""


def main(config: SparseBenchmark) -> None:
    """Run every size and law, print a table, write JSON if asked to."""
    from diffretriever.evaluation.tables import format_table

    about = header()
    laws: tuple[Law, ...] = ("zipf", "uniform")
    figures = [_measure(config, size, law) for size in config.sizes for law in laws]
    if config.sharded:
        figures.append(_measure(config, _SHARDED, "zipf", scipy=False))
    print("\n".join(f"{name}: {text}" for name, text in about.items()))
    print(f"{config.queries} queries of 22 terms, top {config.k}; passages of 59 terms, vocabulary 150,000\n")
    print(format_table([row for each in figures for row in each.rows()], COLUMNS))
    if config.output is not None:
        results = [each.model_dump() for each in figures]
        content = {**about, "settings": config.model_dump(mode="json"), "results": results}
        config.output.parent.mkdir(parents=True, exist_ok=True)
        config.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _measure(config: SparseBenchmark, passages: int, law: Law, *, scipy: bool = True) -> Figures:
    asked = {"queries": config.queries, "k": config.k}
    with TemporaryDirectory() as folder:
        given = {"folder": folder, "impacts": {"law": law, "passages": passages}}
        built = Built.model_validate(_loop("build", **given, per_segment=config.per_segment))
        alone = Alone.model_validate(_loop("alone", **given, **asked))
        beside = _loop("beside", **given, **asked, today_queries=config.today_queries) if scipy else None
    sys.stderr.write(f"{passages:,} passages, {law}: done\n")
    return Figures(
        passages=passages,
        law=law,
        built=built,
        alone=alone,
        beside=None if beside is None else Beside.model_validate(beside),
    )


def _loop(name: str, **arguments: object) -> object:
    return in_child("benchmarks._sparse_loops", name, **arguments)


if __name__ == "__main__":
    main(SparseBenchmark.from_command_line())

"""Tables of 300 to 300,000 fragments: what opening, committing, planning a compaction and reading digests take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run

if TYPE_CHECKING:
    from benchmarks.manifests.loops import Figures

_SIZES, _FULL = (300, 3_000, 30_000), 300_000


class ManifestsBenchmark(Benchmark):
    """Time what jobs do with a table, by how many fragments it has: without vectors, one passage a fragment."""

    full: bool = False
    """Also 300,000 fragments, which takes minutes and a folder with as many names."""
    repeats: PositiveInt = 5
    """Of each action but the reading of digests; the median counts."""


def main(config: ManifestsBenchmark) -> None:
    """Measure each size, print a table, write JSON if asked to."""
    import lance

    from benchmarks.manifests.loops import Figures
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    about["versions"] += f", pylance {lance.__version__}"
    figures: list[Figures] = []
    with TemporaryDirectory() as temporary:
        for fragments in (*_SIZES, *[_FULL] * config.full):
            folder = str(Path(temporary, str(fragments)))
            arguments = {"folder": folder, "fragments": fragments, "repeats": config.repeats}
            figures.append(Figures.model_validate(in_child("benchmarks.manifests.loops", "measure", **arguments)))
            sys.stderr.write(f"{fragments:,} fragments: done\n")
    columns = ("", *(f"{each.fragments:,}" for each in figures))
    config.report(about, format_table(list(_rows(figures)), columns), results=[each.model_dump() for each in figures])


def _rows(figures: list[Figures]) -> Iterator[list[str]]:
    least = figures[0]
    yield ["manifest, MB", *(f"{each.manifest_bytes / 1e6:.3f}" for each in figures)]
    yield ["  ratio", *(f"{each.manifest_bytes / least.manifest_bytes:.1f}" for each in figures)]
    for action, first in least.took.items():
        taken = [each.took[action] for each in figures]
        yield [f"{action}, ms of the processor", *(f"{1000 * each.processor:.1f}" for each in taken)]
        yield ["  ratio", *(f"{each.processor / first.processor:.1f}" for each in taken)]
        yield ["  ms of the clock", *(f"{1000 * each.clock:.1f}" for each in taken)]


if __name__ == "__main__":
    run(ManifestsBenchmark, main)

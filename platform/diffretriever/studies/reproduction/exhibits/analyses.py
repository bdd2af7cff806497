"""Our own analyses of budgets, by backbone, under the paper's names of collections.

Legend: A query budgets, B passage budgets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from diffretriever.core.files import is_file, read_model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.locations import Location
from diffretriever.studies.budgets.grids import GridMeans, GridSection
from diffretriever.studies.budgets.oracle_gains import OracleGain, OracleSection
from diffretriever.studies.budgets.report import AnalysisReport
from diffretriever.studies.reproduction.config import ReproduceJob
from diffretriever.studies.reproduction.tables import AVERAGE, BEIR7

MADE_BY = "make it by jobs/analyse_budgets.py"
_SELECTION = "selection"
_SPLITS = {
    "msmarco/train": "msmarco-train",
    "msmarco/dev": "msmarco-dev",
    "msmarco/dev.small": "msmarco-dev",
    "msmarco/dl19": "dl19",
    "msmarco/test": "dl19",
    "msmarco/dl20": "dl20",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Analysis:
    """The report of analyse_budgets.py for one backbone."""

    name: str
    folder: Location
    report: AnalysisReport

    def grid(self, collection: str, mode: str) -> GridMeans | None:
        """Return the means of all cells; of the average over BEIR-7 where all seven were swept."""
        grids = {named(g.collection): g for g in self.report.section(GridSection).grids if g.mode == mode}
        if collection != AVERAGE:
            return grids.get(collection)
        parts = _all_of(grids)
        if not parts:
            return None
        means_AB = np.sum([grid.means for grid in parts], axis=0) / len(parts)
        best_a, best_b = max(np.ndindex(means_AB.shape), key=lambda cell: (means_AB[cell], -sum(cell)))
        return GridMeans(
            collection=AVERAGE,
            mode=parts[0].mode,
            means=tuple(map(tuple, means_AB.tolist())),
            best=Budget(self.report.query_budgets[best_a], self.report.passage_budgets[best_b]),
            spread=float(np.ptp(means_AB)),
        )

    def gains(self, collection: str, mode: str) -> dict[str, tuple[float, float]]:
        """Return, for each side that an oracle adapts, the fixed budget's mean and the oracle's."""
        found: dict[str, tuple[float, float]] = {}
        for side in ("query", "passage", "joint"):
            gains = {
                named(gain.collection): gain
                for gain in self.report.section(OracleSection).oracles
                if (gain.mode, gain.side) == (mode, side)
            }
            parts: list[OracleGain] = (
                _all_of(gains) if collection == AVERAGE else [*filter(None, [gains.get(collection)])]
            )
            if parts:
                fixed = sum(gain.fixed for gain in parts) / len(parts)
                found[side] = fixed, fixed + sum(gain.headroom for gain in parts) / len(parts)
        return found


def _all_of(found: dict[str, T]) -> list[T]:
    return [found[name] for name in BEIR7] if found.keys() >= set(BEIR7) else []


def named(collection: str) -> str:
    """Return the paper's name of a set such as `msmarco/dl19` or `scifact/test`."""
    if collection == _SELECTION:
        return "msmarco-train"
    return _SPLITS.get(collection, collection.partition("/")[0])


def read_analyses(job: ReproduceJob) -> dict[str, Analysis]:
    """Return the analyses that the job names."""
    found = {}
    for name, folder in job.analyses.items():
        file = folder / "report.json"
        if not is_file(file):
            raise ValueError(f"--analyses {name}={folder}: no report.json there: {MADE_BY}")
        found[name] = Analysis(name, folder, read_model(file, AnalysisReport, MADE_BY))
    return found


def shown_names(analyses: Iterable[str], published: Iterable[str]) -> list[str]:
    """Return the paper's backbones, then those of ours that it does not have."""
    return list(dict.fromkeys([*published, *analyses]))

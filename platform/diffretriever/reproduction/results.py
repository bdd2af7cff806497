"""What the evaluations on disk say: the values behind every cell of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyarrow import parquet

from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.reproduction.evaluation_sets import AVERAGE, BEIR7
from diffretriever.reproduction.plan import PlannedRow, Task
from schemas.report import EvaluationReport


@dataclass(frozen=True)
class Sample:
    """One measured cell."""

    mean: float
    per_query: dict[str, float]
    """Query id → value; of an average, every query of every collection."""


class Results:
    """Reads evaluations, each once."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, EvaluationResult]] = {}

    def sample(self, planned: PlannedRow, collection: str, mode: str, measure: str) -> Sample | None:
        """Return what was measured for a cell, or None where nothing was."""
        if collection == AVERAGE:
            return self._average(planned, mode, measure)
        task = planned.tasks[collection]
        if not isinstance(task, Task) or not task.is_done:
            return None
        result = self._results(task.results).get(mode)
        if result is None or measure not in result.mean:
            return None
        return Sample(result.mean[measure], result.per_query[measure])

    def _average(self, planned: PlannedRow, mode: str, measure: str) -> Sample | None:
        """The mean over the seven collections, each the same weight; its test pools their queries, as the paper's."""
        pooled: dict[str, float] = {}
        means = []
        for collection in BEIR7:
            sample = self.sample(planned, collection, mode, measure)
            if sample is None:
                return None
            means.append(sample.mean)
            pooled |= {f"{collection}/{query}": value for query, value in sample.per_query.items()}
        return Sample(sum(means) / len(means), pooled)

    def _results(self, folder: Path) -> Mapping[str, EvaluationResult]:
        if folder not in self._read:
            self._read[folder] = read_results(folder)
        return self._read[folder]


def read_results(folder: Path) -> dict[str, EvaluationResult]:
    """Return, by mode, what `write_evaluation` left in `folder`."""
    report = EvaluationReport.model_validate_json((folder / "metrics.json").read_text("utf-8"))
    per_query: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in parquet.read_table(folder / "per_query.parquet").to_pylist():
        per_query[row["mode"], row["measure"]][row["query_id"]] = row["value"]
    return {
        mode: EvaluationResult(means, {measure: per_query[mode, measure] for measure in means})
        for mode, means in report.measures.items()
    }

"""Jobs for the tests of the reproduction, and evaluations on disk that no model made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.report import evaluation_report, write_evaluation
from diffretriever.schemas.locations import StorePath
from diffretriever.studies.reproduction.config import ReproduceJob

JobMaker = Callable[..., ReproduceJob]


def make_job(output: Path, root: Path) -> JobMaker:
    """Return a maker of jobs that write to `output`, find their collections in `root` and run one protocol."""

    def make(*tables: str, **changes: Any) -> ReproduceJob:
        values = {"output": output, "collections_root": root, "tables": tables, "protocol": "paper", "encoders": 1}
        return ReproduceJob.model_validate({**values, **changes})

    return make


def fake_evaluation(folder: Path | StorePath, values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Write an evaluation: mode → measure → query → value."""
    results = {
        mode: EvaluationResult(
            {m: float(np.mean([*per_query.values()])) for m, per_query in measures.items()},
            {m: dict(per_query) for m, per_query in measures.items()},
        )
        for mode, measures in values.items()
    }
    write_evaluation(folder, evaluation_report(results, retriever="none", command="none", config={}), results)

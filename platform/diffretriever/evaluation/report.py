"""The report of one evaluation: `metrics.json`, `per_query.parquet`, `report.md` and `report.png`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from diffretriever.evaluation.figure import draw_measures
from diffretriever.evaluation.intervals import intervals_of
from diffretriever.evaluation.measures import EvaluationResult
from diffretriever.evaluation.page import evaluation_page, summary_of, title_of
from diffretriever.evaluation.tables import format_table
from diffretriever.files import whole_file, write_bytes, write_text
from schemas.report import EvaluationReport


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was run, as the report tells it.

    Attributes:
        retriever: what retrieved, for people to read.
        command: the command line.
        config: the resolved config of the job, as JSON values.
        collection: its name; None for a finished run.
        split: the split of the qrels.
        fingerprint: of the index.
        rows: passages in the index.
        query_texts: query id → text, for the hardest and easiest queries.
    """

    retriever: str
    command: str
    config: Mapping[str, Any]
    collection: str | None = None
    split: str | None = None
    fingerprint: str | None = None
    rows: int | None = None
    query_texts: Mapping[str, str] = field(default_factory=dict)


def write_evaluation(output: Path, evaluation: Evaluation, results: Mapping[str, EvaluationResult]) -> EvaluationReport:
    """Write the four files into folder `output`, each whole or not at all; return what is in `metrics.json`.

    Equal inputs give equal bytes, but for `created` in `metrics.json`.

    Args:
        output: folder; made if it is not there, files of an earlier report are replaced.
        evaluation: what was run.
        results: by mode, at least one; all over the same queries and measures.
    """
    report = _report(evaluation, results)
    figure = draw_measures(report.measures, report.intervals, title_of(report), summary_of(report.queries))
    write_bytes(output / "report.png", figure)
    with whole_file(output / "per_query.parquet") as stream:
        parquet.write_table(_per_query_table(results), stream)
    write_text(output / "report.md", evaluation_page(report, results, evaluation.query_texts))
    write_text(output / "metrics.json", report.model_dump_json(indent=2) + "\n")
    return report


def evaluation_table(results: Mapping[str, EvaluationResult]) -> str:
    """Return the means by mode and measure as plain text, for the terminal."""
    measures = list(next(iter(results.values())).mean)
    return format_table([[mode, *result.mean.values()] for mode, result in results.items()], ["mode", *measures])


def _report(evaluation: Evaluation, results: Mapping[str, EvaluationResult]) -> EvaluationReport:
    first = next(iter(results.values()))
    return EvaluationReport(
        measures={mode: result.mean for mode, result in results.items()},
        intervals=intervals_of(results),
        queries=len(next(iter(first.per_query.values()))),
        collection=evaluation.collection,
        split=evaluation.split,
        retriever=evaluation.retriever,
        fingerprint=evaluation.fingerprint,
        rows=evaluation.rows,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=evaluation.command,
        config=dict(evaluation.config),
    )


def _per_query_table(results: Mapping[str, EvaluationResult]) -> pa.Table:
    rows = [
        {"query_id": query, "mode": mode, "measure": measure, "value": value}
        for mode, result in results.items()
        for measure, values in result.per_query.items()
        for query, value in values.items()
    ]
    text = pa.string()
    schema = pa.schema([("query_id", text), ("mode", text), ("measure", text), ("value", pa.float64())])
    return pa.Table.from_pylist(rows, schema=schema)

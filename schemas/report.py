"""What an evaluation leaves on disk beside its runs."""

from __future__ import annotations

from typing import Any

from schemas.base import Model


class EvaluationReport(Model):
    """The file `metrics.json`: one retriever on one split, and all that is needed to do it again."""

    measures: dict[str, dict[str, float]]
    """Mean over queries by mode (`dense`, `sparse`, `hybrid`) and measure, named as the user wrote it."""
    intervals: dict[str, dict[str, tuple[float, float]]]
    """Bootstrap 95% interval of each of those means."""
    queries: int
    """Queries of the qrels; every one counts, also those for which nothing was retrieved."""
    collection: str | None
    """Name of the collection; None for a finished run with a qrels file."""
    split: str | None
    """Split of its qrels."""
    retriever: str
    """What retrieved, for people to read; `config` has it in full."""
    fingerprint: str | None
    """Fingerprint of the index; None for a finished run."""
    rows: int | None
    """Passages in the index; None for a finished run."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""
    config: dict[str, Any]
    """The resolved config of the job."""


class ComparisonReport(Model):
    """The file `comparison.json`: several systems on the same queries."""

    title: str
    """What was compared."""
    measures: dict[str, dict[str, dict[str, float]]]
    """Mean over queries by system, mode and measure."""
    intervals: dict[str, dict[str, dict[str, tuple[float, float]]]]
    """Bootstrap 95% interval of each of those means."""
    queries: int
    """Queries of the qrels, the same for every system."""
    created: str
    """ISO 8601 time, UTC."""
    command: str
    """The command line."""

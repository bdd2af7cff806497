"""What a job has to do for each row and collection, or why nothing can be done there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffretriever.reproduction.evaluation_sets import AVERAGE, EvaluationSet, check_names, find_set
from diffretriever.reproduction.retrievers import Prepared, check_overrides, prepare
from diffretriever.reproduction.tables import load_tables
from schemas.reproduce import PublishedRow, PublishedTable, ReproduceJob, Scoring
from schemas.retriever import RetrieverConfig

READY, DONE = "ready", "done"


@dataclass(frozen=True)
class Task:
    """One retriever on one evaluation set. Equal tasks of several rows share index and results."""

    label: str
    """For people."""
    retriever: RetrieverConfig
    queries: EvaluationSet
    scoring: Scoring
    index: Path
    """Folder of the index."""
    results: Path
    """Folder of the evaluation."""

    @property
    def is_indexed(self) -> bool:
        """Whether the index is finished."""
        return self.summary.is_file()

    @property
    def summary(self) -> Path:
        """What the encoding said at its end; its being there says that the index is finished."""
        return self.index / "finished.json"

    @property
    def is_done(self) -> bool:
        """Whether the evaluation is on disk; `metrics.json` is the last that it writes."""
        return (self.results / "metrics.json").is_file()


@dataclass(frozen=True)
class PlannedRow:
    """A row with what is to be done for each of its collections."""

    row: PublishedRow
    stand_ins: dict[str, str]
    tasks: dict[str, Task | str]
    """Collection → task, or why there is none."""

    def status(self, collection: str) -> str:
        """Return `ready`, `done`, or why there is no task."""
        task = self.tasks[collection]
        if isinstance(task, str):
            return task
        return DONE if task.is_done else READY


@dataclass(frozen=True)
class Plan:
    """All tables that were asked for."""

    tables: tuple[tuple[PublishedTable, tuple[PlannedRow, ...]], ...]

    def rows(self) -> Iterator[PlannedRow]:
        """Yield the rows of all tables."""
        for _, rows in self.tables:
            yield from rows

    def tasks(self) -> dict[Path, list[Task]]:
        """Return every task once, by the folder of the index that it needs, in the order of the tables."""
        found: dict[Path, dict[Path, Task]] = {}
        for task in (task for row in self.rows() for task in row.tasks.values()):
            if isinstance(task, Task):
                found.setdefault(task.index, {}).setdefault(task.results, task)
        return {index: list(tasks.values()) for index, tasks in found.items()}


def make_plan(job: ReproduceJob) -> Plan:
    """Find out what can be run. Loads no model; a dry run does not touch the network either.

    Raises:
        ValueError: the job names a table, collection, backbone or preset that does not exist here.
    """
    tables = load_tables(job.tables, job.mini_collection)
    names = {name for table in tables for row in table.rows for name in row.figures}
    check_names(job, names - {AVERAGE})
    check_overrides(job, tables)
    planner = _Planner(job)
    return Plan(tuple((table, tuple(planner.plan(row) for row in table.rows)) for table in tables))


class _Planner:
    """Plans rows, looking at each evaluation set once."""

    def __init__(self, job: ReproduceJob) -> None:
        self._job = job
        self._sets: dict[str, EvaluationSet | str] = {}

    def plan(self, row: PublishedRow) -> PlannedRow:
        collections = [name for name in row.figures if name != AVERAGE]
        try:
            prepared = prepare(row, self._job)
        except ValueError as error:
            return PlannedRow(row, {}, dict.fromkeys(collections, str(error)))
        return PlannedRow(row, prepared.stand_ins, {name: self._task(row, prepared, name) for name in collections})

    def _task(self, row: PublishedRow, prepared: Prepared, name: str) -> Task | str:
        if name not in self._sets:
            self._sets[name] = self._find(name)
        found = self._sets[name]
        if isinstance(found, str):
            return found
        key = _key(prepared, found)
        suffix = "" if row.scoring == "maxsim" else f"-{row.scoring}"
        return Task(
            label=f"{row.label} on {name}",
            retriever=prepared.config,
            queries=found,
            scoring=row.scoring,
            index=self._job.output / "indexes" / f"{key}-{found.name}",
            results=self._job.output / "evaluations" / f"{key}-{name}-{found.split}{suffix}",
        )

    def _find(self, name: str) -> EvaluationSet | str:
        try:
            return find_set(name, self._job)
        except ValueError as error:
            return str(error)


def _key(prepared: Prepared, queries: EvaluationSet) -> str:
    """16 hex digits that change whenever a vector of the index could, or its passages."""
    parts = [prepared.config.model_dump(mode="json"), prepared.weights, queries.source, queries.state]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

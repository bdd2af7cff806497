"""What the paper's rows take in GPU hours and bytes, and in which order so many hours buy the most rows.

The hours are those of encoding passages, by the arithmetic of the capacity planner; queries are few, and training is
not counted. Rows that read the same index pay for it once. They are rough: one rate for all models of the paper's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diffretriever.evaluation.formats.tables import Cell, format_table
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import is_neural
from diffretriever.studies.planning import encoding_hours, index_bytes, text_bytes_of
from diffretriever.studies.reproduction.plan import DONE, READY, Plan, PlannedRow, Task
from diffretriever.studies.reproduction.protocols import set_up
from diffretriever.studies.reproduction.sizes import FAMILIES, PASSAGES, weight_bytes

_PROMPT_AND_TEXT = 128
"""Tokens of a passage with its prompt: 53 and 75."""


@dataclass(frozen=True)
class RowNeeds:
    """One row of a table of the paper.

    Attributes:
        table: its name.
        label: of the row, for people.
        hours: GPU hours of every index that it reads and that is not there, by a name of the index.
        stored: bytes of those indexes, as far as they are known, by the same names.
        lacks: reasons why it cannot be run here yet.
    """

    table: str
    label: str
    hours: Mapping[str, float]
    stored: Mapping[str, int]
    lacks: tuple[str, ...]

    @property
    def indexes(self) -> frozenset[str]:
        """Names of the indexes that have to be made."""
        return frozenset(self.hours)


@dataclass(frozen=True)
class Step:
    """Rows that are bought together.

    Attributes:
        hours: GPU hours of the indexes that earlier steps have not made.
        stored: bytes of them, as far as they are known.
        rows: those that are whole then, and were not before.
    """

    hours: float
    stored: int
    rows: tuple[RowNeeds, ...]


def needs_of(plan: Plan, rate: float) -> list[RowNeeds]:
    """Return what every row of the paper's tables needs that something here can run.

    Args:
        plan: of all that is asked for.
        rate: passages that one GPU encodes in a second, in one pass of a model of 7 or 8 billion parameters.
    """
    published = [(table.id, planned) for table, rows in plan.tables if table.protocol is not None for planned in rows]
    return [_needs(table, planned, rate, plan.absent) for table, planned in published if planned.row.preset is not None]


def best_order(rows: Sequence[RowNeeds], gpu_hours: float | None = None) -> list[Step]:
    """Return the steps that buy the most rows an hour, always the best of those left; no search for a better whole.

    Args:
        rows: all there are.
        gpu_hours: what may be spent; steps that do not fit any more are left out. None: all.
    """
    hours = {index: taken for row in rows for index, taken in row.hours.items()}
    stored = {index: size for row in rows for index, size in row.stored.items()}
    waiting: dict[frozenset[str], list[RowNeeds]] = {}
    for row in rows:
        waiting.setdefault(row.indexes, []).append(row)
    made: frozenset[str] = frozenset()
    left = float("inf") if gpu_hours is None else gpu_hours
    steps: list[Step] = []
    while waiting:
        costs = {wanted: sum(hours[index] for index in wanted - made) for wanted in waiting}
        affordable = [wanted for wanted, cost in costs.items() if cost <= left]
        if not affordable:
            break
        target = max(affordable, key=lambda wanted: _value(wanted | made, waiting, costs[wanted]))
        # On the way there, what costs least first: its rows are whole the sooner.
        best = min((wanted for wanted in affordable if wanted <= target | made), key=lambda wanted: costs[wanted])
        size = sum(stored.get(index, 0) for index in best - made)
        made, left = made | best, left - costs[best]
        whole = [wanted for wanted in waiting if wanted <= made]
        steps.append(Step(costs[best], size, tuple(row for wanted in whole for row in waiting.pop(wanted))))
    return steps


def hours_page(plan: Plan, rate: float, gpu_hours: float | None) -> str:
    """Return the rows with what they need, and the order in which to run them, as plain text.

    Args:
        plan: of all that is asked for.
        rate: as `needs_of` takes it.
        gpu_hours: as `best_order` takes it.
    """
    rows = needs_of(plan, rate)
    needed: list[list[Cell]] = [
        [row.table, row.label, f"{sum(row.hours.values()):.1f}", _stored(row), "; ".join(row.lacks) or "nothing"]
        for row in rows
    ]
    order = list(_order_rows(best_order(rows, gpu_hours)))
    about = (
        f"GPU hours of encoding at {rate:g} passages a second and GPU (--rate); training is not counted. GB of indexes "
        "with all their files, by arithmetic: 75 tokens a passage, as many vectors as it may have; those of "
        "sentence-transformers' models are not known."
    )
    parts = [
        about,
        format_table(needed, ["table", "row", "GPU hours", "GB", "lacks"]),
        "Weights, in bf16:",
        format_table([[source, _gb(weight_bytes(source))] for source in FAMILIES], ["backbone", "GB"]),
        "Collections, their texts by the same arithmetic:",
        format_table([[name, f"{n:,}", _gb(text_bytes_of(n))] for name, n in PASSAGES.items()], ["", "passages", "GB"]),
        "In this order the hours buy the most rows:",
        format_table(order, ["hours", "in all", "GB", "in all", "rows", "whole then"]),
    ]
    everything = best_order(rows)
    total, size = sum(step.hours for step in everything), sum(step.stored for step in everything)
    bought = sum(len(step.rows) for step in best_order(rows, gpu_hours))
    budget = "all hours" if gpu_hours is None else f"{gpu_hours:g} GPU hours"
    parts.append(f"{budget}: {bought} of {len(rows)} rows; all of them take {total:,.1f} and {_gb(size)} GB")
    return "\n\n".join(parts)


def _needs(table: str, planned: PlannedRow, rate: float, absent: Mapping[str, str]) -> RowNeeds:
    row = planned.row
    assert row.preset is not None, "the caller has checked this"
    config = set_up(row, load_retriever(row.preset)).config
    # Before an adapter is there its row has the config of the row without one.
    retriever = f"{config.model_dump_json()} {row.preset if row.needs_adapter else ''}"
    hours: dict[str, float] = {}
    stored: dict[str, int] = {}
    for collection, task in planned.tasks.items():
        if config.has_weights and not (isinstance(task, Task) and (task.is_done or task.is_indexed)):
            corpus = collection if collection in PASSAGES else "msmarco"
            name = f"{corpus} {retriever}"
            hours[name] = encoding_hours(PASSAGES[corpus], rate / config.passes(_PROMPT_AND_TEXT))
            size = index_bytes(config, PASSAGES[corpus]) if is_neural(config) else None
            stored |= {} if size is None else {name: size}
    return RowNeeds(table, row.label, hours, stored, tuple(_lacks(planned, absent)))


def _lacks(planned: PlannedRow, absent: Mapping[str, str]) -> Iterator[str]:
    """Yield the collections that are not here, then the other reasons, each once."""
    missing = [collection for collection in planned.tasks if collection in absent]
    if missing:
        yield f"{'collection' if len(missing) == 1 else 'collections'} {', '.join(missing)}"
    known = (READY, DONE, *absent.values())
    yield from dict.fromkeys(status for status in map(planned.status, planned.tasks) if status not in known)


def _value(made: frozenset[str], waiting: Mapping[frozenset[str], Sequence[RowNeeds]], cost: float) -> float:
    """Return the rows that are whole with the indexes `made`, for each hour that they cost."""
    rows = sum(len(rows) for wanted, rows in waiting.items() if wanted <= made)
    return rows / cost if cost else float("inf")


def _order_rows(steps: Sequence[Step]) -> Iterator[list[Cell]]:
    spent, stored, rows = 0.0, 0, 0
    for step in steps:
        spent, stored, rows = spent + step.hours, stored + step.stored, rows + len(step.rows)
        by_label: dict[str, list[str]] = {}
        for row in step.rows:
            by_label.setdefault(row.label, []).append(row.table)
        whole = "; ".join(f"{label} ({', '.join(tables)})" for label, tables in by_label.items())
        yield [f"{step.hours:.1f}", f"{spent:.1f}", _gb(step.stored), _gb(stored), str(rows), whole]


def _stored(row: RowNeeds) -> str:
    return _gb(sum(row.stored.values())) if row.stored.keys() == row.hours.keys() else "not known"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f}"

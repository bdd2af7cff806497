"""What each query scored with each budget: the tables of a sweep's folder, read and written.

Legend: A query budgets, B passage budgets, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pydantic import ValidationError

from diffretriever.files import whole_file
from schemas.base import suggest
from schemas.budget import Budget
from schemas.sweep import OUTCOMES_SCHEMA, SweepManifest, SweepMode

MANIFEST_FILE = "sweep.json"
OUTCOMES_FILE = "per_query.parquet"


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """One mode and one measure of one split: a value for every query with every budget.

    Attributes:
        queries: Q ids.
        query_budgets: A numbers K_q, ascending.
        passage_budgets: B numbers K_p, ascending.
        values_ABQ: float64 [A, B, Q], larger is better.
    """

    queries: tuple[str, ...]
    query_budgets: tuple[int, ...]
    passage_budgets: tuple[int, ...]
    values_ABQ: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self.query_budgets), len(self.passage_budgets), len(self.queries))
        assert self.values_ABQ.shape == shape, f"values are {self.values_ABQ.shape}, the budgets and queries {shape}"

    @classmethod
    def read(cls, folder: Path, split: str, mode: SweepMode, measure: str) -> Outcomes:
        """Read one mode and measure of a split of the sweep in `folder`; queries in the order of the file.

        Raises:
            ValueError: no such sweep, split, mode or measure, or a table that lacks a value or has one twice.
        """
        manifest = read_manifest(folder)
        for what, name, known in (
            ("split", split, manifest.splits),
            ("mode", mode, manifest.modes),
            ("measure", measure, manifest.measures),
        ):
            if name not in known:
                raise ValueError(f"the sweep {folder} has no {what} '{name}'.{suggest(name, known)}")
        path = folder / split / OUTCOMES_FILE
        wanted = (compute.field("mode") == mode) & (compute.field("measure") == measure)
        table = parquet.read_table(path, schema=OUTCOMES_SCHEMA, filters=wanted)
        return _from_table(table, manifest, f"{path} ({mode}, {measure})")

    def at(self, budget: Budget) -> np.ndarray:
        """Return the values with `budget`, float64 [Q].

        Raises:
            ValueError: the sweep has no such cell.
        """
        a, b = self.place(budget)
        return self.values_ABQ[a, b]

    def place(self, budget: Budget) -> tuple[int, int]:
        """Return the indices of `budget` on the first two axes; raises `ValueError` where it was not swept."""
        if budget.query not in self.query_budgets or budget.passage not in self.passage_budgets:
            raise ValueError(
                f"{budget} was not swept: K_q is one of {_listed(self.query_budgets)}, "
                f"K_p one of {_listed(self.passage_budgets)}"
            )
        return self.query_budgets.index(budget.query), self.passage_budgets.index(budget.passage)

    def best(self) -> Budget:
        """Return the budget with the highest mean; of equals the one with fewer slots, then fewer query slots."""
        means_AB = self.values_ABQ.mean(axis=2)
        cells = [(a, b) for a in range(len(self.query_budgets)) for b in range(len(self.passage_budgets))]
        budgets = {(a, b): Budget(self.query_budgets[a], self.passage_budgets[b]) for a, b in cells}
        return budgets[min(cells, key=lambda c: (-means_AB[c], sum_of(budgets[c]), budgets[c].query))]


def sum_of(budget: Budget) -> int:
    """Return the slots of a budget, K_q + K_p."""
    return budget.query + budget.passage


def read_manifest(folder: Path) -> SweepManifest:
    """Read `sweep.json` of a sweep's folder.

    Raises:
        ValueError: there is none, or it is malformed.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(f"no sweep at {folder}: it has no {MANIFEST_FILE}; jobs/sweep_budgets.py makes one")
    try:
        return SweepManifest.model_validate_json(path.read_text("utf-8"))
    except ValidationError as error:
        raise ValueError(f"{path}: {error.errors()[0]['msg']}") from error


def write_outcomes(
    folder: Path, split: str, cells: Mapping[tuple[SweepMode, Budget], Mapping[str, Mapping[str, float]]]
) -> None:
    """Write `<split>/per_query.parquet` of the sweep in `folder`, whole or not at all; equal values give equal bytes.

    Args:
        folder: of the sweep; made if it is not there.
        split: name of its subfolder.
        cells: (mode, budget) → measure → query id → value: what `evaluate` returns as `per_query`. Every cell has the
            same measures and queries.
    """
    first = next(iter(cells.values()))
    queries = list(next(iter(first.values())))
    columns: dict[str, list[object]] = {name: [] for name in OUTCOMES_SCHEMA.names}
    for (mode, budget), measures in cells.items():
        assert measures.keys() == first.keys(), f"{mode} {budget} has other measures than the first cell"
        for measure, values in measures.items():
            assert values.keys() == first[measure].keys(), f"{mode} {budget} has other queries than the first cell"
            repeated = (mode, budget.query, budget.passage, measure)
            for name, value in zip(("mode", "query_budget", "passage_budget", "measure"), repeated, strict=True):
                columns[name] += [value] * len(queries)
            columns["query"] += queries
            columns["value"] += [values[query] for query in queries]
    with whole_file(folder / split / OUTCOMES_FILE) as stream:
        parquet.write_table(pa.table(columns, schema=OUTCOMES_SCHEMA), stream)


def _from_table(table: pa.Table, manifest: SweepManifest, shown: str) -> Outcomes:
    """Put a long table into its grid, and see that every place is filled once."""
    ids, places_R = np.unique(table["query"].to_numpy(), return_inverse=True)
    first_Q = np.full(len(ids), table.num_rows)
    np.minimum.at(first_Q, places_R, np.arange(table.num_rows))
    order_Q = np.argsort(first_Q)
    rank_Q = np.argsort(order_Q)
    a_R = _indices(table["query_budget"].to_numpy(), manifest.query_budgets, f"{shown}: query_budget")
    b_R = _indices(table["passage_budget"].to_numpy(), manifest.passage_budgets, f"{shown}: passage_budget")
    values_ABQ = np.full((len(manifest.query_budgets), len(manifest.passage_budgets), len(ids)), np.nan)
    values_ABQ[a_R, b_R, rank_Q[places_R]] = table["value"].to_numpy()
    if table.num_rows != values_ABQ.size or not np.isfinite(values_ABQ).all() or not len(ids):
        raise ValueError(f"{shown} is no complete grid of finite values: run the sweep again to the end")
    queries = tuple(map(str, ids[order_Q]))
    return Outcomes(queries, manifest.query_budgets, manifest.passage_budgets, values_ABQ)


def _indices(numbers_R: np.ndarray, budgets: tuple[int, ...], shown: str) -> np.ndarray:
    places_R = np.searchsorted(budgets, numbers_R)
    known_R = np.isin(numbers_R, budgets)
    if not known_R.all():
        raise ValueError(
            f"{shown} {numbers_R[~known_R][0]} is not in {MANIFEST_FILE}: one of the two is of another sweep"
        )
    return places_R


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))

"""The tables, read from the YAML files in this package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import yaml

from schemas.base import suggest
from schemas.reproduce import PublishedTable

MINI = "mini"
PAPER_TABLES = (
    "main-indomain",
    "main-beir7",
    "multistep-indomain",
    "multistep-beir7",
    "prompt-comparison",
    "compressed-storage",
    "beir7-modes",
    "dense-baselines",
    "index-storage",
)
"""In the paper's order."""


def load_tables(names: Sequence[str], mini_collection: str) -> list[PublishedTable]:
    """Return the tables of these names, or all where none is given.

    Args:
        names: of `PAPER_TABLES`, or `mini`.
        mini_collection: collection that the table `mini` is about.

    Raises:
        ValueError: no such table.
    """
    known = (*PAPER_TABLES, MINI)
    for name in names:
        if name not in known:
            raise ValueError(f"--tables: no table '{name}'.{suggest(name, known)}")
    tables = [load_table(name) for name in names or known]
    return [_on(table, mini_collection) if table.id == MINI else table for table in tables]


@cache
def load_table(name: str) -> PublishedTable:
    """Return one table as its file has it."""
    folder = files("diffretriever.reproduction")
    file = folder / f"{MINI}.yaml" if name == MINI else folder / "published" / f"{name}.yaml"
    return PublishedTable.model_validate(yaml.safe_load(file.read_text("utf-8")))


def _on(table: PublishedTable, collection: str) -> PublishedTable:
    """Return the table, whose rows have one collection, with another in its place."""
    rows = []
    for row in table.rows:
        (figures,) = row.figures.values()
        rows.append(row.model_copy(update={"figures": {collection: figures}}))
    return table.model_copy(update={"rows": tuple(rows)})

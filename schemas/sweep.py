"""What a budget sweep leaves on disk: its manifest, and the Arrow schemas of its tables."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

import pyarrow as pa
from pydantic import PositiveInt, model_validator

from schemas.base import Model

SweepMode: TypeAlias = Literal["dense", "sparse", "hybrid", "pooled-slots"]
"""The scores of a retriever; `pooled-slots` is the dense score of averaged slots (paper §6.1)."""

OUTCOMES_SCHEMA = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("mode", pa.string(), nullable=False),
        pa.field("query_budget", pa.int32(), nullable=False),
        pa.field("passage_budget", pa.int32(), nullable=False),
        pa.field("measure", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
"""`<split>/per_query.parquet`: every query with every mode, cell and measure, once."""

QUERIES_SCHEMA = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)
"""`<split>/queries.parquet`: the queries' ids, texts and the subwords of the texts, without special tokens."""


class SweepManifest(Model):
    """The file `sweep.json`: which retriever was swept over which budgets, on what."""

    collection: str
    """Name of the collection."""
    retriever: str
    """What retrieved, for people to read; its budget is of no account."""
    fingerprint: str
    """Of the encoder as far as queries depend on it: the same for all cells, whatever their budgets."""
    query_budgets: tuple[PositiveInt, ...]
    """K_q, ascending."""
    passage_budgets: tuple[PositiveInt, ...]
    """K_p, ascending."""
    modes: tuple[SweepMode, ...]
    """Scores that were evaluated."""
    measures: tuple[str, ...]
    """As ir_measures writes them."""
    splits: tuple[str, ...]
    """Splits that were searched; each has a folder beside this file."""
    command: str
    """The command line."""

    @model_validator(mode="after")
    def _check_lists(self) -> Self:
        for name in ("query_budgets", "passage_budgets"):
            budgets = list(getattr(self, name))
            if not budgets or budgets != sorted(set(budgets)):
                raise ValueError(f"{name} {budgets}: give at least one number, ascending, none twice")
        for name in ("modes", "measures", "splits"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty: a sweep has at least one")
        return self

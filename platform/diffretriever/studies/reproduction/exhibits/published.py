"""What the paper's text says of its figures, as data, and the figures' own names for things."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TypeAlias

import yaml

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.studies.reproduction.tables import AVERAGE, BEIR7, load_table

Range: TypeAlias = tuple[float, float]

TITLES = {
    "msmarco-train": "MS MARCO train",
    "msmarco-dev": "MS MARCO dev",
    "dl19": "DL19",
    "dl20": "DL20",
    "nq": "NQ",
    "hotpotqa": "HotpotQA",
    "scifact": "SciFact",
    "trec-covid": "TREC-COVID",
    "fiqa": "FiQA",
    "arguana": "ArguAna",
    "quora": "Quora",
    AVERAGE: "BEIR-7 average",
}
"""What a panel is called."""

BACKBONES = ("Dream", "LLaDA")
"""The two with slots, in the paper's order."""
ANALYSES = " ".join(f"--analyses {name}=ANALYSIS" for name in BACKBONES)
"""Flags of a command that takes an analysis of each."""


class FigureFacts(Model):
    """The file `figures.yaml`."""

    fixed: dict[str, Budget]
    best_cells: dict[str, dict[str, Budget]]
    spread: dict[str, float]
    oracle_over_fine_tuned: dict[str, dict[str, float]]
    correlations: dict[str, dict[str, dict[str, float]]]
    best_query_budget: Range
    query_latency: dict[str, Range]
    encoding_latency: dict[str, dict[str, Range]]
    search_latency: dict[str, float]


@cache
def figure_facts() -> FigureFacts:
    """Return what the text says."""
    text = (files("diffretriever.studies.reproduction.exhibits") / "figures.yaml").read_text("utf-8")
    return FigureFacts.model_validate(yaml.safe_load(text))


def table_of(collection: str) -> str:
    """Return the table that has all scores of a collection."""
    return "beir7-modes" if collection in (*BEIR7, AVERAGE) else "main-indomain"


def measure_of(collection: str) -> str:
    """Return the paper's measure of a collection."""
    return "MRR@10" if collection.startswith("msmarco") else "nDCG@10"


def published_score(row: str, collection: str, mode: str) -> float | None:
    """Return what the paper's tables have for a row of the main results; None where they have nothing."""
    rows = {each.id: each for each in load_table(table_of(collection)).rows}
    return rows[row].figures.get(collection, {}).get(mode, {}).get(measure_of(collection))

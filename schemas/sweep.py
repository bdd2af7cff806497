"""The budget sweep: config, output files and summary of the job."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

import pyarrow as pa
from pydantic import AfterValidator, Field, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.locations import Location
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.settings import BadInput, EncoderActors, RetrieverOptions, SelfExclusion

SweepMode: TypeAlias = Literal["dense", "sparse", "hybrid", "pooled-slots"]
"""Score of a retriever; `pooled-slots` is the dense score of averaged slots (paper §6.1)."""


def _ascending(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


SlotCounts: TypeAlias = Annotated[tuple[PositiveInt, ...], Field(min_length=1), AfterValidator(_ascending)]

PAPER_COUNTS = (1, 2, 4, 8, 16)

RETRIEVER_FILE = "retriever.yaml"
"""Name of the file in a sweep's folder with the retriever, for `--retriever`; a precision of `auto` is resolved."""

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
"""Rows of `<split>/per_query.parquet`: one per query, mode, pair of budgets and measure."""

QUERIES_SCHEMA = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)
"""Rows of `<split>/queries.parquet`: queries with their token ids, without special tokens."""


class SweepJob(EncoderActors, SelfExclusion, RetrieverOptions, BadInput):
    """Evaluate all budgets (K_q, K_p) on a collection and choose the best; run the same command again to resume.

    The job encodes passages once per K_p (once in total for nested slots) and queries once per K_q. Each pair then
    costs one search (paper §3.5). The retriever's own budget is ignored.
    """

    collection: str
    """Collection to search; see encode_beir.py."""
    output: Location
    """Folder for indexes, runs, per-query measures and the selection."""
    splits: tuple[str, ...] = ()
    """Splits with the queries; default: all splits of the collection."""
    max_queries: PositiveInt | None = None
    """Queries per split, a random sample with a fixed seed; default: all. MS MARCO's training split has 500,000."""
    query_budgets: SlotCounts = PAPER_COUNTS
    """Values of K_q to evaluate."""
    passage_budgets: SlotCounts = PAPER_COUNTS
    """Values of K_p to evaluate; each has an index."""
    modes: tuple[SweepMode, ...] = ()
    """Scoring modes; default: all of the retriever except `pooled-slots`, which averages slots in place of MaxSim
    (paper §6.1)."""
    measures: tuple[str, ...] = Field(default=("nDCG@10", "MRR@10"), min_length=1)
    """Measures, in ir_measures' notation. Runs are as deep as the deepest needs, and at least 100."""
    select_split: str | None = None
    """Split to choose the budget on; default: `train` if it is swept, otherwise no choice. The best budget maximises
    hybrid (paper §3.5), otherwise the last of the modes. Its measure is MRR@10 on MS MARCO's train and dev queries,
    otherwise nDCG@10, or the first of --measures if that is not measured."""

    @model_validator(mode="after")
    def _selection_is_swept(self) -> Self:
        if self.select_split is not None and self.splits and self.select_split not in self.splits:
            swept = ", ".join(self.splits)
            raise ValueError(f"--select-split {self.select_split} is not swept: give one of {swept}")
        return self


class SweepManifest(Model):
    """The file `sweep.json`: the retriever, budgets and collection of a sweep."""

    collection: str
    retriever: str
    """Title of the retriever; ignore the budget in it."""
    fingerprint: str
    """Fingerprint of the encoder without its budget."""
    query_budgets: tuple[PositiveInt, ...]
    """Values of K_q, ascending."""
    passage_budgets: tuple[PositiveInt, ...]
    """Values of K_p, ascending."""
    modes: tuple[SweepMode, ...]
    measures: tuple[str, ...]
    """Measures, in ir_measures' notation."""
    splits: tuple[str, ...]
    command: str


class BudgetSelection(Model):
    """The file `selection.json` of a sweep: the best budget on one split, and the means of all budgets."""

    format: Literal[1] = 1
    budget: Budget
    """The best budget; ties go to fewer slots K_q + K_p, then to fewer query slots."""
    mode: SweepMode
    measure: str
    """Measure, in ir_measures' notation."""
    split: str
    value: float
    """Mean of the measure with this budget."""
    grid: dict[Budget, float]
    """Mean of the measure with each budget."""
    queries: int
    collection: str
    retriever: str
    backbone: str
    """Source of the backbone; only retrievers with the same source can use the selection."""
    adapter: str | None
    """Source of the adapter; only retrievers with the same source can use the selection."""
    fingerprint: str
    """Fingerprint of the encoder without its budget; see `encoder_fingerprint`."""
    command: str


def encoder_fingerprint(manifest: IndexManifest) -> str:
    """Return the fingerprint of an encoder without its budget, the same for all budgets of a sweep."""
    retriever = manifest.retriever
    if has_slots(retriever):
        retriever = retriever.model_copy(update={"budget": Budget(1, 1)})
    return manifest.model_copy(update={"retriever": retriever}).fingerprint


class SweepSummary(Model):
    """The outcome of a sweep's searches."""

    passages: int
    """Passages in each index."""
    searched: int
    """Cells (split, K_q, K_p) searched by this job."""
    found: int
    """Cells searched by an earlier, interrupted job."""
    passes: int
    """Scans of an index; several per index if there are too many queries for one."""
    seconds: float
    """Duration, excluding the start of Ray."""

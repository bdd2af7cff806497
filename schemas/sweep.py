"""The budget sweep: the job's config, what it leaves on disk, and what it says at its end."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

import pyarrow as pa
from pydantic import AfterValidator, Field, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.places import Place
from diffretriever.schemas.retriever import has_slots
from diffretriever.schemas.settings import BadInput, EncoderActors, RetrieverOptions, SelfExclusion

SweepMode: TypeAlias = Literal["dense", "sparse", "hybrid", "pooled-slots"]
"""The scores of a retriever; `pooled-slots` is the dense score of averaged slots (paper §6.1)."""


def _ascending(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


SlotCounts: TypeAlias = Annotated[tuple[PositiveInt, ...], Field(min_length=1), AfterValidator(_ascending)]

PAPER_COUNTS = (1, 2, 4, 8, 16)

RETRIEVER_FILE = "retriever.yaml"
"""In a sweep's folder: what was swept, its precision filled in, as a file that `--retriever` takes."""

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


class SweepJob(EncoderActors, SelfExclusion, RetrieverOptions, BadInput):
    """Measure every pair of budgets (K_q, K_p) on a collection and choose the best; resumable by the same command.

    Passages are encoded once for each K_p, or once for all if slots are nested, queries once for each K_q; a pair more
    costs one search (paper §3.5). The retriever's own budget is not used.
    """

    collection: str
    """Collection to search; see encode_beir.py."""
    output: Place
    """Folder of the sweep: indexes, runs, measures of every query, the selection."""
    splits: tuple[str, ...] = ()
    """Splits whose queries are searched for; default: all that the collection has."""
    max_queries: PositiveInt | None = None
    """Queries of each split, drawn at random, always the same; default: all. MS MARCO's training split has 500,000."""
    query_budgets: SlotCounts = PAPER_COUNTS
    """K_q to try."""
    passage_budgets: SlotCounts = PAPER_COUNTS
    """K_p to try, an index for each."""
    modes: tuple[SweepMode, ...] = ()
    """Scores to rank by; default: all that the retriever offers. `pooled-slots`, averaged slots in place of MaxSim
    (paper §6.1), is there for the asking."""
    measures: tuple[str, ...] = Field(default=("nDCG@10", "MRR@10"), min_length=1)
    """Measures as ir_measures writes them."""
    top_k: PositiveInt = 100
    """Passages kept per query. Fusion looks at the first 1,000 of each list all the same."""
    select_split: str | None = None
    """Split to choose the budget on; default: `train` if that is swept, else nothing is chosen. The budget has the best
    hybrid score (paper §3.5), or else the best by the last of the modes, in the collection's own measure (MRR@10 for MS
    MARCO's train and dev queries, else nDCG@10) or else the first of the measures."""

    @model_validator(mode="after")
    def _selection_is_swept(self) -> Self:
        if self.select_split is not None and self.splits and self.select_split not in self.splits:
            swept = ", ".join(self.splits)
            raise ValueError(f"--select-split {self.select_split} is not swept: it must be one of {swept}")
        return self


class SweepManifest(Model):
    """The file `sweep.json`: which retriever was swept over which budgets, on what."""

    collection: str
    """Name of the collection."""
    retriever: str
    """What retrieved, for people to read; its budget says nothing."""
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


class BudgetSelection(Model):
    """The file `selection.json` of a sweep: the best budget on one split, and the grid that it is the best of."""

    format: Literal[1] = 1
    """Version of the file's layout."""
    budget: Budget
    """The argmax; of equal cells the one with fewer slots K_q + K_p, of those the one with fewer query slots."""
    mode: SweepMode
    """Score that was ranked by."""
    measure: str
    """As ir_measures writes it."""
    split: str
    """Split that it was chosen on."""
    value: float
    """Mean of the measure with this budget."""
    grid: dict[Budget, float]
    """Mean of every budget that was tried."""
    queries: int
    """Queries of the split."""
    collection: str
    """Name of the collection."""
    retriever: str
    """What was swept, for people to read."""
    backbone: str
    """Its weights, as they were named; only a retriever of the same may use the selection."""
    adapter: str | None
    """Its adapter, likewise."""
    fingerprint: str
    """Of the encoder whatever its budget; see `encoder_fingerprint`."""
    command: str
    """The command line."""


def encoder_fingerprint(manifest: IndexManifest) -> str:
    """Return the fingerprint of an encoder whatever its budget: the same for all cells of a sweep."""
    retriever = manifest.retriever
    if has_slots(retriever):
        retriever = retriever.model_copy(update={"budget": Budget(1, 1)})
    return manifest.model_copy(update={"retriever": retriever}).fingerprint


class SweepSummary(Model):
    """The outcome of the searching half of a sweep."""

    passages: int
    """Passages in each index."""
    searched: int
    """Cells (split, K_q, K_p) searched now."""
    found: int
    """Cells that an earlier attempt had left."""
    passes: int
    """Passes over an index: one each, unless there are more queries than may share one."""
    seconds: float
    """Duration without Ray's start."""

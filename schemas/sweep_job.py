"""The budget sweep: the job's config, and what it says at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from schemas.base import Model
from schemas.jobs import RayConfig
from schemas.sweep import SweepMode


def _ascending(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


SlotCounts: TypeAlias = Annotated[tuple[PositiveInt, ...], Field(min_length=1), AfterValidator(_ascending)]
PAPER_COUNTS = (1, 2, 4, 8, 16)
RETRIEVER_FILE = "retriever.yaml"
"""In a sweep's folder: what was swept, its precision filled in, as a file that `--retriever` takes."""


class SweepJob(RayConfig):
    """Measure every pair of budgets (K_q, K_p) on a collection and choose the best; resumable by the same command.

    Passages are encoded once for each K_p, or once for all if slots are nested, queries once for each K_q; a pair more
    costs one search (paper §3.5).
    """

    collection: str
    """Collection to search; see encode_beir.py."""
    retriever: str = "diffretriever-minilm"
    """Name of a preset, or a YAML file that describes a retriever. Its own budget is of no account."""
    backbone: str | None = None
    """Local folder or hub id to use in place of the retriever's own backbone."""
    adapter: str | None = None
    """Local folder or hub id of a LoRA adapter to use in place of the retriever's own."""
    output: Path
    """Folder of the sweep: indexes, runs, measures of every query, the selection."""
    splits: tuple[str, ...] = ()
    """Splits whose queries are searched for; default: all that the collection has."""
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
    exclude_self: bool = True
    """Drop a query's own document (same id), as BEIR does for ArguAna and Quora; off matches the paper."""
    select_split: str | None = None
    """Split to choose the budget on; default: `train` where that is swept, else nothing is chosen."""
    select_mode: SweepMode | None = None
    """Score to choose it by; default: hybrid where there is one (paper §3.5), else the last of the modes."""
    select_measure: str | None = None
    """Measure to choose it by; default: the first of the measures."""
    on_bad_input: Literal["error", "quarantine"] = "error"
    """What to do with passages that cannot be encoded: stop, or set them aside in a file beside the index."""
    device: str = "auto"
    """Where the search runs, on the driver's machine: `cpu`, `cuda`, `cuda:1`; `auto`: a GPU if there is one."""
    memory_mb: PositiveInt = 1024
    """Memory that scoring may use."""
    queries_at_once: PositiveInt = 5000
    """Encoded queries that share a pass over an index, all K_q and splits counted. What is found for them takes about
    0.2 MB each until it is written."""

    @model_validator(mode="after")
    def _selection_is_swept(self) -> Self:
        for flag, chosen, known in (
            ("--select-split", self.select_split, self.splits),
            ("--select-mode", self.select_mode, self.modes),
            ("--select-measure", self.select_measure, self.measures),
        ):
            if chosen is not None and known and chosen not in known:
                raise ValueError(f"{flag} {chosen} is not swept: it must be one of {', '.join(known)}")
        return self


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

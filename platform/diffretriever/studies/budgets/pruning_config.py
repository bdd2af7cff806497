"""Fewer slots for passages that need fewer: the job's config."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import PositiveInt, model_validator

from diffretriever.schemas.locations import IndexLocation, Location
from diffretriever.schemas.settings import SelfExclusion

Rule: TypeAlias = Literal["same number", "threshold", "first slots"]
"""Rules that drop slots of stored passages."""


class PruneSlotsJob(SelfExclusion):
    """Measure dense search as slots of an index's passages are removed; the index does not change.

    With --pruned, also write an index of the passages with fewer slots.
    """

    sweep: Location | None = None
    """Split folder of a sweep, such as sweeps/scifact/test: its index of the largest K_p, encoded queries and runs;
    encodes nothing."""
    index: IndexLocation | None = None
    """In place of --sweep: folder or object-store URI of an index, for --collection and --split."""
    collection: str | None = None
    """Collection with the queries and qrels; default: the sweep's."""
    split: str = "test"
    """Split of --collection, with --index."""
    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the largest of the sweep, or the retriever's own."""
    keep: tuple[PositiveInt, ...] = ()
    """Average slots per passage, one for each point of the curve; default: K_p, K_p/2, K_p/4, …"""
    measure: str = "nDCG@10"
    """Measure of the curve."""
    pruned: IndexLocation | None = None
    """Folder or object-store URI of a new index, whose passages keep the one value of --keep by --rule."""
    rule: Rule = "threshold"
    """Slots to keep for --pruned. `same number`: as many of every passage, the least redundant. `threshold`: the least
    redundant of all passages. `first slots`: the first, which for nested slots are those of a smaller budget. Sparse
    impacts stay those of all slots."""
    output: Location
    """Folder for curve.md, curve.png and curve.json."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.sweep is None) == (self.index is None):
            raise ValueError("give --sweep, or --index with --collection")
        if self.index is not None and self.collection is None:
            raise ValueError("--index needs --collection, for queries and judgements")
        if self.pruned is not None and len(self.keep) != 1:
            raise ValueError("--pruned needs one value of --keep: the slots that passages of the new index have")
        return self

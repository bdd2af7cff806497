"""Fewer slots for passages that need fewer: the job's config."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import PositiveInt, model_validator

from diffretriever.schemas.places import IndexPlace, Place
from diffretriever.schemas.settings import SelfExclusion

Rule: TypeAlias = Literal["same number", "threshold", "first slots"]
"""Rules that drop slots of stored passages."""


class PruneSlotsJob(SelfExclusion):
    """Trace what an index's passages lose in dense search when their slots go one by one; changes no index.

    With --pruned, also write an index of the passages with fewer slots.
    """

    sweep: Place | None = None
    """Split folder of a sweep, such as sweeps/scifact/test: its index of the largest K_p, encoded queries and runs;
    encodes nothing."""
    index: IndexPlace | None = None
    """In place of --sweep: folder or object-store URI of an index, for --collection and --split."""
    collection: str | None = None
    """Collection with queries and judgements; with --sweep default: the one that was swept."""
    split: str = "test"
    """Split of --collection, with --index."""
    query_budget: PositiveInt | None = None
    """K_q of the queries; default: the retriever's own, with --sweep the largest that was swept."""
    keep: tuple[PositiveInt, ...] = ()
    """Slots that passages keep on average, a point of the curve each; default: K_p halved again and again."""
    measure: str = "nDCG@10"
    """Measure of the curve."""
    pruned: str | None = None
    """Folder or object-store URI for an index of its own, whose passages have as many slots as the one value of --keep
    says, by --rule."""
    rule: Rule = "threshold"
    """For --pruned: `same number` keeps so many slots of every passage, `threshold` so many on average, those of least
    redundancy. `first slots` keeps the first ones: with nested slots the vectors of a smaller budget. Sparse impacts
    stay those of all slots in any case."""
    output: Place
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

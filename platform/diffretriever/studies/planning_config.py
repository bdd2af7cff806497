"""The capacity planner's job and its result."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.settings import ModelOptions, PresetListing


class PlanJob(ModelOptions, PresetListing):
    """Estimate the cost of an index before you create it: hours, bytes, memory and time of a search."""

    passages: PositiveInt | None = None
    """Number of passages; default: that of --collection."""
    collection: str | None = None
    """Collection to count its passages and the length of their texts, and for --measure; see encode_beir.py."""
    retriever: str = "diffretriever-minilm"
    """Name of a preset, path of a YAML file, sentence-transformers/MODEL (a hub id, or a folder such as
    sentence-transformers/./folder), or PACKAGE:NAME of an installed retriever."""
    backbone: str | None = None
    """Backbone that replaces the retriever's own: folder, object-store URI or hub id."""
    budget: tuple[Budget, ...] = ()
    """Budgets to compare, such as q4p4,q4p16; default: the retriever's own."""
    tokens: PositiveFloat | None = None
    """Average tokens of a passage's text; default: the collection's, or 75."""
    rate: PositiveFloat | None = None
    """Passages per second that one device encodes."""
    measure: bool = False
    """Load the encoder, and measure rate, vectors and impacts on 256 random passages of the collection."""
    bandwidth: PositiveFloat | None = None
    """GB/s at which a search reads 8-bit codes; default: measured on one core of this node."""
    json_output: bool = False
    """Print JSON instead of text."""

    @model_validator(mode="after")
    def _enough_is_said(self) -> PlanJob:
        if self.passages is None and self.collection is None:
            raise ValueError("give --passages NUMBER, or --collection to count")
        if self.measure and self.collection is None:
            raise ValueError("--measure needs --collection, to have passages to encode")
        if self.measure and self.rate is not None:
            raise ValueError("give --rate or --measure, not both")
        return self


class BudgetPlan(Model):
    """What an index takes with one budget. Bytes are of all passages together."""

    budget: str
    """`q4p16`, or the method of a retriever without slots."""
    vectors: float
    """Average vectors of a passage."""
    impacts: float
    """Average impacts of a passage."""
    rate: float | None
    """Passages that one device encodes in a second; None where it was neither given nor measured."""
    hours: float | None
    """Hours that one device takes."""
    layouts: dict[str, int]
    """Bytes of the vectors alone, by the way they are stored."""
    table_bytes: int
    """The Lance table: texts, vectors in fp16, impacts."""
    codes_bytes: int
    """Files of dense searches: 8-bit codes, and a copy of the vectors."""
    means_bytes: int
    """Codes of mean vectors, and sketches, which propose candidates; keep both in memory."""
    postings_bytes: int
    """Impacts as postings."""
    search_memory: int
    """Bytes that the exact scan of the codes keeps in memory."""
    scanned: int
    """Bytes of codes that it reads for a query."""
    scan_rate: float
    """Bytes a second at which it reads them."""
    seconds_per_query: float
    """`scanned` at that rate, without encoding the query and rescoring passages."""
    sketches_bytes: int
    """Bytes of the sketches, kept in memory."""
    sketches_seconds: float
    """Seconds a query: all sketches at that rate, and the vectors of 200 candidates from the table."""

    @property
    def stored_bytes(self) -> int:
        """Of table, codes and postings."""
        return self.table_bytes + self.codes_bytes + self.postings_bytes


class CapacityPlan(Model):
    """What an index of so many passages takes."""

    retriever: str
    """As it was named."""
    passages: int
    hidden_size: int
    """H of the vectors."""
    text_bytes: float
    """Average bytes of a passage's title and text, UTF-8."""
    tokens: float
    """Average tokens of them."""
    measured_on: int
    """Passages that rate, vectors and impacts were measured on; 0 where they were given."""
    bandwidth_measured: bool
    """Whether the scan's rate was measured on one core here; else it was given."""
    budgets: list[BudgetPlan]

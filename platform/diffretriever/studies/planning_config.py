"""The capacity planner's job and its result."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.settings import ModelOptions, PresetListing


class PlanJob(ModelOptions, PresetListing):
    """Estimate the cost of an index before you make it: hours, bytes, memory and time of a search, cost of storage."""

    passages: PositiveInt | None = None
    """How many passages; default: as many as --collection has."""
    collection: str | None = None
    """Collection to count, to take the length of texts from and to --measure on; see encode_beir.py."""
    retriever: str = "diffretriever-minilm"
    """Name of a preset, a YAML file that describes a retriever, sentence-transformers/MODEL (a model of the hub, or a
    folder such as sentence-transformers/./folder, used as its own files say), or PACKAGE:NAME of one installed."""
    backbone: str | None = None
    """Folder, object-store URI or hub id to use in place of the retriever's own backbone."""
    budget: tuple[Budget, ...] = ()
    """Budgets to compare, such as q4p4,q4p16; default: the retriever's own."""
    tokens: PositiveFloat | None = None
    """Average tokens of a passage's text; default: the collection's, or 75."""
    rate: PositiveFloat | None = None
    """Passages that one device encodes in a second."""
    measure: bool = False
    """Load the encoder here and find the rate, vectors and impacts on 256 passages drawn from the collection."""
    bandwidth: PositiveFloat | None = None
    """GB/s at which a search reads 8-bit codes; default: measured on one core of this machine, in a short probe."""
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

"""Training data: the jobs that prepare it and mine negatives, and the manifests and Arrow schema of their files."""

from __future__ import annotations

from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.locations import IndexLocation, Location
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.search import IndexOptions
from diffretriever.schemas.settings import BadInput, EncoderActors

_PASSAGE = pa.struct([pa.field(name, pa.large_string(), nullable=False) for name in ("id", "title", "text")])
EXAMPLES_SCHEMA = pa.schema(
    [
        pa.field("query_id", pa.large_string(), nullable=False),
        pa.field("query", pa.large_string(), nullable=False),
        pa.field("n_positives", pa.int32(), nullable=False),
        pa.field("passages", pa.list_(pa.field("item", _PASSAGE, nullable=False)), nullable=False),
    ]
)
"""Rows of `examples.arrow`: a query with its passages, positives first."""


class PrepareTrainingJob(BadInput):
    """Check, deduplicate and join training files into one training set, in one atomic step."""

    source: tuple[str, ...]
    """Training data; repeat the flag to join several. Files: .jsonl, .tsv (optionally .gz) or .parquet with records in
    Tevatron's layout or of plain texts. Folders: such files with names that begin with the split. Collections of
    encode_beir.py: passages with grade 1 or more are positives. All can be on an object store."""
    split: str = "train"
    """Split of collections and of folders of files."""
    output: Location
    """Folder or object-store URI for the training set."""
    hold_out: tuple[str, ...] = ()
    """Evaluation collection. The training set excludes its queries and passages, compared by text. Repeat the flag for
    several."""


class TrainingCounts(Model):
    """Counts of included and excluded records, of one source or of all."""

    examples: int = 0
    """Examples in the training set."""
    positives: int = 0
    negatives: int = 0
    bad_records: int = 0
    """Invalid records, written to quarantine."""
    repeated_examples: int = 0
    """Excluded examples that equal an earlier one."""
    repeated_passages: int = 0
    """Excluded passages with the id or text of another passage of the record."""
    held_out_examples: int = 0
    """Excluded examples with the query, or all positives, in a held-out collection."""
    held_out_positives: int = 0
    """Excluded positives with a text of a held-out collection, including those of excluded examples."""
    held_out_negatives: int = 0
    """Excluded negatives with a text of a held-out collection, including those of excluded examples."""

    def __add__(self, other: TrainingCounts) -> TrainingCounts:
        return TrainingCounts(**{name: value + getattr(other, name) for name, value in self})


class TrainingSource(Model):
    """A source of training examples."""

    name: str
    """Path, URI or name, as in `--source`."""
    state: str
    """Digest that changes with the source's files."""
    counts: TrainingCounts = TrainingCounts()


class TrainingSetManifest(Model):
    """The file `manifest.json` of a training set, written last; a set without it is incomplete."""

    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    """Digest of all examples in order, 32 hex digits. It does not depend on parallelism, and names the cache folder of
    a set on an object store."""
    counts: TrainingCounts
    """Sum over all sources."""
    sources: tuple[TrainingSource, ...]
    """Sources, in the order of their examples."""
    split: str
    on_bad_input: Literal["error", "quarantine"]
    """Policy for invalid records."""
    hold_out: tuple[TrainingSource, ...]
    """Held-out collections, without counts."""
    size: int
    """Bytes of `examples.arrow`."""


class MineNegativesJob(IndexOptions, EncoderActors, BadInput):
    """Mine hard negatives for training queries from an index; run the same command again to resume.

    The result is a file in Tevatron's layout for prepare_training.py.
    """

    source: str
    """Training source with queries and positives, as in prepare_training.py; its negatives are ignored. Its passages
    should be in the index."""
    split: str = "train"
    """Split of a collection or of a folder of files."""
    output: Location
    """File to write, .jsonl or .jsonl.gz. OUTPUT.json is its manifest; OUTPUT.parts stores finished parts until the job
    is done."""
    mode: Mode | None = None
    """Scoring mode; default: hybrid if the index supports it, otherwise its own score."""
    depth: PositiveInt = 200
    """Passages retrieved per query."""
    negatives: PositiveInt = 30
    """Maximum negatives per query, the best-ranked ones."""
    max_share: PositiveFloat | None = None
    """Exclude passages that score above this share of the query's best positive, as probably relevant, and all passages
    if no positive is within the depth. 0.95 did well in arXiv 2407.15831."""

    @model_validator(mode="after")
    def _depth_is_enough(self) -> MineNegativesJob:
        if self.depth < self.negatives:
            raise ValueError(f"--depth {self.depth} is less than --negatives {self.negatives}: raise --depth")
        return self


class MinedNegatives(Model):
    """The file OUTPUT.json of a mining job."""

    identity: str
    """Digest of all inputs and settings that the result depends on."""
    index: IndexLocation
    version: int
    fingerprint: str
    retriever: str
    settings: dict[str, str | int | float | None]
    """Settings of the job that the result depends on."""
    queries: int = 0
    negatives: int = 0
    incomplete: int = 0
    """Queries with fewer negatives than requested."""
    positives_found: int = 0
    """Queries with a positive within the depth."""
    seconds: float = 0.0
    """Duration of the last execution."""

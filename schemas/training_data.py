"""Training data: the jobs that prepare it and mine negatives, the prepared form's manifest and its Arrow schemas."""

from __future__ import annotations

from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.mode import Mode
from diffretriever.schemas.places import IndexPlace, Place
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
"""`examples.arrow`: a query with its passages, the positives first."""


class PrepareTrainingJob(BadInput):
    """Turn training files into one training set, checked and without duplicates; appears whole or not at all."""

    source: tuple[str, ...]
    """Training data; repeat the flag to join several. A file .jsonl or .tsv, either may be .gz, or .parquet: records in
    Tevatron's layout or of plain texts. A folder of such files whose names begin with the split. A collection as
    encode_beir.py takes it, whose judgements of relevance 1 and more are the positives. Each of them may be the URI of
    an object store."""
    split: str = "train"
    """Split of collections and of folders of files."""
    output: Place
    """Folder or object-store URI for the training set."""
    hold_out: tuple[str, ...] = ()
    """Collection that the retriever is going to be measured on: no query or passage that is among its texts is trained
    on; repeat the flag for several."""


class TrainingCounts(Model):
    """What became of the records of one source, or of all."""

    examples: int = 0
    """In the training set."""
    positives: int = 0
    """Of these examples."""
    negatives: int = 0
    """Of these examples."""
    bad_records: int = 0
    """Set aside."""
    repeated_examples: int = 0
    """Left out because an example before them is the same in everything."""
    repeated_passages: int = 0
    """Left out because another passage of the same record has the same id or text."""
    held_out_examples: int = 0
    """Left out because their query, or all of their positives, are texts of a held-out collection."""
    held_out_positives: int = 0
    """Left out because they are texts of a held-out collection, those of left-out examples included."""
    held_out_negatives: int = 0
    """Likewise."""

    def __add__(self, other: TrainingCounts) -> TrainingCounts:
        return TrainingCounts(**{name: value + getattr(other, name) for name, value in self})


class TrainingSource(Model):
    """Where examples come from."""

    name: str
    """As it was given."""
    state: str
    """Changes when its files do."""
    counts: TrainingCounts = TrainingCounts()
    """What became of its records."""


class TrainingSetManifest(Model):
    """The file `manifest.json` of a training set, written last: without it there is no training set."""

    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    """Of all examples in their order, 32 hex digits; the same for any blocks and number of workers. It names the folder
    in the cache of a set on an object store."""
    counts: TrainingCounts
    """Of all sources together."""
    sources: tuple[TrainingSource, ...]
    """In the order in which their examples follow each other."""
    split: str
    """Split of the sources that have splits."""
    on_bad_input: Literal["error", "quarantine"]
    """What was done with records that cannot be used."""
    hold_out: tuple[TrainingSource, ...]
    """Collections whose texts were left out; they have no counts."""
    size: int
    """Bytes of `examples.arrow`."""


class MineNegativesJob(IndexOptions, EncoderActors, BadInput):
    """Search an index for passages that look relevant to training queries and are not; resumable by the same command.

    The result is a file in Tevatron's layout that prepare_training.py reads.
    """

    source: str
    """Training source with queries and positives, as prepare_training.py takes it; its negatives are left out. Its
    passages should be those of the index."""
    split: str = "train"
    """Split of a collection or of a folder of files."""
    output: Place
    """File to write, .jsonl or .jsonl.gz. OUTPUT.json beside it is its manifest; OUTPUT.parts has finished parts until
    all are done."""
    mode: Mode | None = None
    """Score to rank by; default: hybrid if the index offers it, else the index's own score."""
    depth: PositiveInt = 200
    """Passages retrieved for each query."""
    negatives: PositiveInt = 30
    """Most passages kept for each query, the best-ranked ones."""
    max_share: PositiveFloat | None = None
    """Leave out passages that score more than this share of the query's best positive, for they may be relevant too; a
    positive that is not within the depth scores less than all that is. Published trials did well with 0.95
    (arXiv 2407.15831)."""

    @model_validator(mode="after")
    def _depth_is_enough(self) -> MineNegativesJob:
        if self.depth < self.negatives:
            raise ValueError(f"--depth {self.depth} is less than --negatives {self.negatives}: raise --depth")
        return self


class MinedNegatives(Model):
    """The file OUTPUT.json of a mining job."""

    identity: str
    """Of everything that the result depends on."""
    index: IndexPlace
    """Where the index is."""
    version: int
    """Of the index's table."""
    fingerprint: str
    """Of the index's retriever."""
    retriever: str
    """The index's retriever, for people to read."""
    settings: dict[str, str | int | float | None]
    """Settings of the job that the result depends on."""
    queries: int = 0
    """In the file."""
    negatives: int = 0
    """Of all queries together."""
    incomplete: int = 0
    """Queries with fewer negatives than asked for."""
    positives_found: int = 0
    """Queries with a positive within the depth."""
    seconds: float = 0.0
    """Duration of the attempt that finished it."""

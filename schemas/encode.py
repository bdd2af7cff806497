"""Config and summary of the encode job."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import BudgetChoice
from diffretriever.schemas.locations import IndexLocation
from diffretriever.schemas.metadata import check_column_name
from diffretriever.schemas.settings import BadInput, RayConfig, RetrieverOptions

NO_METADATA = ("none",)
"""Value of `--metadata` that stores no metadata."""


class EncodeJob(RayConfig, RetrieverOptions, BadInput):
    """Encode a collection into an index, each passage exactly once; run the same command again to resume."""

    collection: str
    """Path, URI or name of the collection. Paths: BEIR folder or zip, MS MARCO folder, corpus file (.jsonl, .tsv, .csv,
    .json, .parquet, .arrow), or .md, .txt and .html files; all except a zip can be on an object store. Names: `pydoc`
    (built in), a BEIR set to download, or `irds:NAME` for ir_datasets (needs the extra `irds`)."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Field names of the table for id, title and text, such as text=body. Default: id, _id, docid, docno, doc_id or
    pid; title; text or contents."""
    metadata: tuple[str, ...] = ()
    """Metadata fields to store, return with hits and filter by; repeat the flag or separate by commas. `none` stores no
    metadata. Default: all fields except lists and objects. An existing index keeps its fields."""
    index: IndexLocation
    """Folder or object-store URI of the index. The job creates it, or adds passages to an existing one."""
    budget: BudgetChoice | None = None
    """Number of slots, q<K_q>p<K_p>, such as q4p16, or the selection.json of a budget sweep. Default: the
    retriever's."""
    chunk: NonNegativeInt | None = None
    """Maximum tokens of a passage and its title (words for BM25). Longer documents are split at paragraphs or sentences
    into passages ID#1, ID#2, …; 0 disables splitting. Default: the retriever's limit for folders and files of text,
    otherwise 0, because judgements are of whole documents."""
    on_existing: Literal["error", "skip", "replace"] = "error"
    """Policy for a passage whose id is in the index with another text. Unchanged passages are not encoded again."""
    sync: bool = False
    """At the end, delete passages that the collection no longer contains. Not allowed if the index has passages of the
    same collection name from another path."""
    rows_per_block: PositiveInt | None = None
    """Passages per write batch, encoded and committed together; default: about 32 MB, at most 512 passages."""
    accelerate: bool = True
    """At the end, build 8-bit codes and postings for faster search, as accelerate_index.py does, and BM25. Skipped for
    an index with less than a megabyte of vectors, unless it has these files already."""

    @property
    def metadata_wanted(self) -> tuple[str, ...] | None:
        """Metadata fields to store; None for all."""
        if self.metadata == NO_METADATA:
            return ()
        return self.metadata or None

    @field_validator("metadata")
    @classmethod
    def _check_metadata_names(cls, metadata: tuple[str, ...]) -> tuple[str, ...]:
        for name in metadata if metadata != NO_METADATA else ():
            check_column_name(name)
        return tuple(dict.fromkeys(metadata))

    @model_validator(mode="after")
    def _check_sync(self) -> Self:
        if self.sync and self.on_bad_input != "error":
            raise ValueError("--sync needs --on-bad-input error: the passage of a bad record is unknown")
        return self


class EncodeSummary(Model):
    """The outcome of one encode job; counts are passages."""

    index: str
    fingerprint: str
    """Fingerprint of the retriever that made it."""
    encoded: int
    """Passages encoded and committed by this job."""
    already_there: int
    """Unchanged passages, not encoded again."""
    skipped: int
    """Changed passages left as they were (`--on-existing skip`)."""
    replaced: int
    """Changed passages replaced (`--on-existing replace`); included in `encoded`."""
    deleted: int
    """Passages deleted because the collection no longer contains them (`--sync`)."""
    bad: int
    """Records written to quarantine."""
    bad_reasons: dict[str, int]
    quarantine: str | None
    """File with the bad records, if any."""
    rows: int
    """Passages in the index."""
    chunk: int | None = None
    """Maximum tokens of a passage; None if documents are not split."""
    seconds: float
    """Duration of the job, excluding the start of Ray."""
    steady_rate: float
    """Passages per second between the first and last finished block; 0 for fewer than two blocks."""
    device_share: float | None = None
    """Fraction of the time from an encoder's first block to its last in which its device computed; None if no passage
    was encoded."""
    peak_memory: int | None = None
    """Peak memory of an encoder in bytes: GPU memory, or process memory on a CPU; None if no passage was encoded."""

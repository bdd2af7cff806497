"""Encoding a collection: the job's config, and what it says at its end."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveInt, field_validator, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import BudgetChoice
from diffretriever.schemas.metadata import check_column_name
from diffretriever.schemas.places import IndexPlace
from diffretriever.schemas.settings import BadInput, RayConfig, RetrieverOptions

NO_METADATA = ("none",)
"""What `--metadata` says to keep no further fields."""
_ROLES = ("id", "title", "text")


class EncodeJob(RayConfig, RetrieverOptions, BadInput):
    """Encode a collection into an index: exactly once, resumable by running the same command again."""

    collection: str
    """BEIR folder or zip, MS MARCO folder, corpus file (.jsonl, .tsv, .csv, .json, .parquet, .arrow), other folder of
    .md, .txt and .html files or one of them, all but a zip also as the URI of an object store; or a name: `pydoc`
    (built in), a BEIR set to download, or `irds:` and a name of ir_datasets (the extra `irds`)."""
    fields: tuple[str, ...] = ()
    """What fields of a table are called, as ROLE=FIELD with the roles id, title and text: text=body; default: id, _id,
    docid, docno, doc_id or pid, title, text or contents."""
    metadata: tuple[str, ...] = ()
    """Further fields to keep as columns, returned with hits and filtered by; repeat the flag or separate by commas;
    `none`: none of them; default: all whose values are neither lists nor objects. An index that is there keeps those
    that it was made with."""
    index: IndexPlace
    """Folder or object-store URI of the index; made if it is not there, added to if it is."""
    budget: BudgetChoice | None = None
    """Slots as q<K_q>p<K_p>, for example q4p16, in place of the retriever's own; or the selection.json of a budget
    sweep."""
    chunk: NonNegativeInt | None = None
    """Most tokens of a passage, with its title, counted by the retriever's own tokenizer (words for BM25): a longer
    document becomes passages ID#1, ID#2, … of whole paragraphs or sentences; 0: none does. Default: as many as the
    retriever reads for folders and files of text, 0 for others, whose judgements are of whole documents."""
    on_existing: Literal["error", "skip", "replace"] = "error"
    """What to do with a passage whose id is in the index with another text. The same text is never encoded twice."""
    sync: bool = False
    """At the end, delete what the index holds of this collection, by its name, and the collection no longer has; not
    where passages of that name came from another place."""
    rows_per_block: PositiveInt | None = None
    """Passages encoded and committed together; default: what keeps a block near 32 MB, 512 at the most."""
    compact: bool = True
    """Join the table's small fragments while it grows and at the end, and then forget old versions."""
    accelerate: bool = True
    """At the end, make the codes and postings that the index is searched faster by, as accelerate_index.py does, and
    BM25 of the texts; an index with less than a megabyte of vectors gets none, unless it has some already."""

    @property
    def named_fields(self) -> dict[str, str]:
        """`fields` by role."""
        return dict(_role_and_field(each) for each in self.fields)

    @property
    def metadata_wanted(self) -> tuple[str, ...] | None:
        """Names of the fields to keep; None for all."""
        if self.metadata == NO_METADATA:
            return ()
        return self.metadata or None

    @field_validator("metadata")
    @classmethod
    def _names_columns(cls, metadata: tuple[str, ...]) -> tuple[str, ...]:
        for name in metadata if metadata != NO_METADATA else ():
            check_column_name(name)
        return tuple(dict.fromkeys(metadata))

    @field_validator("fields")
    @classmethod
    def _names_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        if len({_role_and_field(each)[0] for each in fields}) < len(fields):
            raise ValueError("a role is named twice")
        return fields

    @model_validator(mode="after")
    def _syncs_with_good_records(self) -> Self:
        if self.sync and self.on_bad_input != "error":
            raise ValueError("--sync needs --on-bad-input error: nobody can say which passage a bad record was")
        return self


def _role_and_field(text: str) -> tuple[str, str]:
    role, _, field = text.partition("=")
    if role not in _ROLES or not field:
        raise ValueError(f"'{text}': write ROLE=FIELD with a role of {', '.join(_ROLES)}, for example text=body")
    return role, field


class EncodeSummary(Model):
    """The outcome of one encode job; counts are passages."""

    index: str
    """Where the index is."""
    fingerprint: str
    """Fingerprint of the retriever that made it."""
    encoded: int
    """Encoded and committed by this job."""
    already_there: int
    """In the index before with the same text; not encoded again."""
    skipped: int
    """In the index with another text, left as they were (`--on-existing skip`)."""
    replaced: int
    """In the index with another text, replaced (`--on-existing replace`); counted in `encoded` too."""
    deleted: int
    """Gone from the collection, and so from the index (`--sync`)."""
    bad: int
    """Records set aside."""
    bad_reasons: dict[str, int]
    """Why, by kind."""
    quarantine: str | None
    """File that holds the bad records, if there are any."""
    rows: int
    """In the index now."""
    chunk: int | None = None
    """Most tokens of a passage, where longer documents are several; None where documents stay whole."""
    seconds: float
    """Duration of the job without Ray's start."""
    steady_rate: float
    """Passages per second from the first finished block to the last; 0 where there were fewer than two."""
    device_share: float | None = None
    """Share of the encoders' time, from the beginning of their first blocks to the end of their last, in which their
    devices computed; None where nothing was encoded."""
    peak_memory: int | None = None
    """Most bytes that an encoder took: of its GPU's memory or, on a CPU, as a process; None likewise."""

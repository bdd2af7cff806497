"""Compressing an index: the job's config, and what it says at its end."""

from __future__ import annotations

from diffretriever.schemas.base import Model
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.places import IndexPlace
from diffretriever.schemas.settings import JobConfig


class CompressJob(JobConfig):
    """Store an index's vectors in a few bits a dimension; the decoded vectors take the place of the encoder's."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    codec: CodecConfig = CodecConfig(2)
    """`product1`, `product2` or `product4`, by the bits of a dimension."""


class CompressSummary(Model):
    """The outcome of a compress job."""

    index: IndexPlace
    """Where the index is."""
    codec: CodecConfig
    """Bits of a dimension."""
    digest: str
    """Of the trained codec."""
    passages: int
    """In the index."""
    written: int
    """Passages written by this job; an earlier attempt that was killed wrote the others."""
    bytes_before: int
    """Size of the data files of the version before; it stays until compaction forgets that version."""
    bytes_after: int
    """Size of the data files now."""
    seconds: float
    """Duration of the job without Ray's start."""

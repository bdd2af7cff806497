"""Config and summary of the compress job."""

from __future__ import annotations

from diffretriever.schemas.base import Model
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.locations import IndexLocation
from diffretriever.schemas.settings import JobConfig


class CompressJob(JobConfig):
    """Quantise an index's vectors to 1, 2 or 4 bits a dimension. Searches use the decoded vectors."""

    index: IndexLocation
    """Folder or object-store URI of the index."""
    codec: CodecConfig = CodecConfig(2)
    """Codec: `product1`, `product2` or `product4`, for 1, 2 or 4 bits a dimension."""


class CompressSummary(Model):
    """The outcome of a compress job."""

    index: IndexLocation
    codec: CodecConfig
    digest: str
    """Digest of the trained codec."""
    passages: int
    """Passages in the index."""
    written: int
    """Passages written by this job; an earlier, interrupted job wrote the others."""
    bytes_before: int
    """Size of the previous version's data files, which compaction deletes."""
    bytes_after: int
    """Size of the new data files."""
    seconds: float
    """Duration of the job, excluding the start of Ray."""

"""Compressing an index: the job's config, and what it says at its end."""

from __future__ import annotations

from typing import Annotated

from pydantic import PositiveInt
from pydantic_settings import NoDecode

from diffretriever.schemas.base import Model
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.places import IndexPlace
from diffretriever.schemas.settings import JobConfig


class CompressJob(JobConfig):
    """Store an index's vectors in a few bits a dimension; the decoded vectors take the place of the encoder's."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    # Settings would read a dataclass as JSON, and this one has a text form.
    codec: Annotated[CodecConfig, NoDecode] = CodecConfig(2)
    """`product1`, `product2` or `product4`, by the bits of a dimension."""
    keep_vectors: bool = False
    """Write codes beside the vectors and leave those as they are; the same command without this drops them."""
    sample: PositiveInt = 131072
    """Vectors to train the codec on, drawn at random."""
    ray_address: str = "auto"
    """Ray cluster to use; `auto` is a running one if there is, else a local one started for this job; `local` always
    starts one."""


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

"""Making an index fast to search: the job's config, and what is kept of a calibrated candidate search."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.search import IndexOptions

Kind: TypeAlias = Literal["codes", "packed", "postings"]
"""The files that a fragment can be searched by, by the name of their folder: codes of its vectors, or what a codec has
in place of them, and an inverted index of its impacts."""
Beside: TypeAlias = Literal["vectors", "means"]
"""The contents of a fragment's `codes`: 8-bit codes of all vectors and a copy of these, or codes of the passages' mean
vectors alone."""
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]


class AccelerateJob(IndexOptions):
    """Make an index fast to search: codes, postings, BM25, a candidate index where asked for; results stay the same."""

    candidates: bool = False
    """Build and calibrate a candidate index: searches score only the passages that it proposes, exactly. It reads 28
    bytes of each passage, then the mean vectors of few. Where the exact scan is no slower at that recall, all passages
    are scored. Worth it from about a hundred thousand passages on; below, the exact scan of the codes is fast
    enough."""
    beside: Beside | None = None
    """Files for dense searches, next to the table. `vectors`: 8-bit codes of all vectors, which exact searches scan,
    and a copy of the vectors, from which exact scores come. `means`: codes of passages' mean vectors alone, for
    candidates: a few hundred bytes a passage whatever K_p; exact scores read the vectors of few passages from the
    table, which takes milliseconds longer a query, and exact searches read the whole table.
    Default: as the codes that exist, or else vectors."""
    recall: Share = 0.99
    """Recall@top_k that the search budget is chosen for, on queries made from the index's own passages."""
    top_k: PositiveInt = 100
    """Passages of a query that the recall counts."""


class CandidateSettings(Model):
    """The outcome of a calibration on a sample of the index's own passages, kept beside the codes."""

    search_budget: PositiveInt
    """Candidates a query; as many as there are passages where the exact scan was no slower."""
    top_k: PositiveInt
    """Depth of the recall."""
    target: Share
    """Recall@top_k asked for."""
    measured: Share
    """Recall@top_k on the sample at this budget."""
    milliseconds: PositiveFloat
    """Median time of a sampled query alone at this budget, on the machine that calibrated it."""
    sample: PositiveInt
    """Queries made from passages' beginnings."""
    passages: PositiveInt
    """Passages in the index when it was calibrated."""
    version: PositiveInt
    """Table version at that time."""

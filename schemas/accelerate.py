"""Config of the job that accelerates an index, and the settings of its candidate index."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.search import IndexOptions

Kind: TypeAlias = Literal["codes", "packed", "postings"]
"""Folder of a derived file: 8-bit codes of the vectors, the codec's quantised vectors, or the impacts' postings."""
CodeLayout: TypeAlias = Literal["vectors", "means"]
"""Contents of `codes`: 8-bit codes and a copy of all vectors, or codes of the passages' mean vectors only."""
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]


class AccelerateJob(IndexOptions):
    """Build the files that make search faster: codes, postings, BM25 and, on request, a candidate index."""

    candidates: bool = False
    """Build and calibrate a candidate index; searches then score only the candidates, exactly. Use it above about
    100,000 passages. If the exact scan is as fast at the target recall, all passages are scored."""
    beside: CodeLayout | None = None
    """Files for dense search, stored in the index folder. `vectors`: 8-bit codes for the exact scan, and a copy of the
    vectors for exact scores. `means`: codes of mean vectors only, a few hundred bytes a passage at any K_p; candidate
    searches take milliseconds longer, and exact searches read the whole table. Default: as the existing codes,
    otherwise vectors."""
    recall: Share = 0.99
    """Target Recall@top_k of the calibration, measured on queries made from the index's passages."""
    top_k: PositiveInt = 100
    """Depth of the recall, in passages per query."""


class CandidateSettings(Model):
    """Result of a calibration on a sample of the index's passages, stored with the codes."""

    search_budget: PositiveInt
    """Candidates per query; the number of passages if the exact scan was as fast."""
    top_k: PositiveInt
    """Depth of the recall."""
    target: Share
    """Target Recall@top_k."""
    measured: Share
    """Recall@top_k on the sample at this budget."""
    milliseconds: PositiveFloat
    """Median time of a single query at this budget, on the calibrating machine."""
    sample: PositiveInt
    """Number of queries, made from the beginnings of passages."""
    passages: PositiveInt
    """Passages in the index when it was calibrated."""
    version: PositiveInt
    """Version of the index when it was calibrated."""

"""Making an index fast to search: the job's config, and what is kept of a calibrated candidate search."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from schemas.base import Model
from schemas.places import IndexPlace
from schemas.settings import ModelOptions

ProposerName: TypeAlias = Literal["mean", "lancedb_tokens", "faiss_tokens", "plaid"]

Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]


class AccelerateJob(ModelOptions):
    """Make an index fast to search: codes, postings, a candidate index where asked for; results stay the same."""

    index: IndexPlace
    """Local folder of the index."""
    candidates: Literal["none", "auto"] | ProposerName = "none"
    """Candidate index to calibrate: only what it names is scored, exactly. `mean` goes by passages' mean vectors,
    `plaid` by the centroids of slot vectors, `lancedb_tokens` by LanceDB's index over slot vectors, `faiss_tokens` by
    faiss's (extra `faiss`); `auto` tries `mean` and `plaid`. Where none is faster at that recall, all are scored.
    Worth it from about a hundred thousand passages on; below, the exact scan of the codes is fast enough."""
    recall: Share = 0.99
    """Recall@top_k that the search budget is chosen for, on queries made from the index's own passages."""
    top_k: PositiveInt = 100
    """Passages of a query that the recall counts."""
    sample: PositiveInt = 200
    """Queries to calibrate with."""
    backbone: str | None = None
    """Where the index's backbone lies now, if it has moved."""
    adapter: str | None = None
    """Where its adapter lies now, if it has moved."""
    workers: PositiveInt | Literal["auto"] = "auto"
    """Fragments worked on at a time, by Ray where it is more than 1; `auto`: as many as there are CPUs where many
    passages wait in several fragments, else 1."""


class CandidateSettings(Model):
    """The outcome of a calibration on a sample of the index's own passages, kept beside the codes."""

    proposer: ProposerName
    """`mean`: the inner product of mean vectors. `lancedb_tokens`, `faiss_tokens`: the nearest slot vectors by an
    index of LanceDB or faiss. `plaid`: MaxSim over the centroids of slot vectors."""
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

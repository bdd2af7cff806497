"""What is known of an index's candidate search: which one, how many candidates, and the recall it was set for."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from schemas.base import Model

ProposerName: TypeAlias = Literal["mean", "lancedb_tokens", "faiss_tokens", "plaid"]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]


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

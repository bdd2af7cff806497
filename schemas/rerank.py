"""The config of a reranker, the job that reranks a run, and its summary."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.places import IndexPlace, Place
from diffretriever.schemas.retriever import BackboneConfig, TitleJoin
from diffretriever.schemas.settings import JobConfig


class RerankerConfig(Model):
    """Scores a passage by log p(query | passage) under a masked diffusion model.

    The model sees the passage and as many masks as the query has tokens, so it knows the query's length.
    """

    backbone: BackboneConfig
    read_offset: Literal[0, -1] = 0
    """Position read for a token, relative to it. 0: LLaDA and masked language models. -1: Dream, which predicts a token
    one position before it."""
    title_join: TitleJoin = "space"
    """Separator of a passage's title and text; `none` leaves the title out."""
    max_query_tokens: PositiveInt = 128
    """Tokens of a query that are scored; the rest is left out."""
    max_passage_tokens: PositiveInt = 512
    """Tokens of a passage that the model sees; fewer where prompt and query leave less room."""


class RerankJob(JobConfig):
    """Put the best passages of each query of a TREC run into a reranker's order; resumable by the same command."""

    run: Place
    """TREC run to rerank. Its scores rank it, ties by passage id ascending."""
    collection: str
    """Collection that has the queries and the passages; see encode_beir.py."""
    split: str = "test"
    """Split of the collection that has the queries."""
    index: IndexPlace | None = None
    """Folder or object-store URI of an index to take the passages' texts from, in place of the collection."""
    reranker: str
    """Name of a preset, or a YAML file that describes a reranker."""
    backbone: str | None = None
    """Folder, object-store URI or hub id to use in place of the reranker's own backbone."""
    depth: PositiveInt = 100
    """Passages of each query that are scored. Those below follow in their old order, with scores that count down from
    the lowest of the scored ones."""
    output: Place
    """TREC run to write. OUTPUT.yaml beside it says how it was made; OUTPUT.partial holds finished queries until
    all are."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto`: a GPU if there is one."""

    @model_validator(mode="after")
    def _output_is_another_file(self) -> RerankJob:
        if self.run.absolute() == self.output.absolute():
            raise ValueError(f"--output {self.output} is the run itself: give another file")
        return self


class RerankSummary(Model):
    """The outcome of one rerank job."""

    queries: int
    """In the run."""
    resumed: int
    """Of them, taken over from an earlier attempt."""
    passages: int
    """Scored by this job."""
    seconds: float
    """Spent on scoring them."""

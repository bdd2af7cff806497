"""Configs of a reranker and of the rerank job, and the job's summary."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.places import IndexPlace, Place
from diffretriever.schemas.retriever import BackboneConfig, TitleJoin
from diffretriever.schemas.settings import JobConfig


class RerankerConfig(Model):
    """A reranker that scores a passage by log p(query | passage) under a masked diffusion model.

    The model's input is the passage and one mask per query token, which reveals the query's length.
    """

    method: Literal["query-likelihood"] = "query-likelihood"
    backbone: BackboneConfig
    read_offset: Literal[0, -1] = 0
    """Position that predicts a token, relative to it. 0: LLaDA and masked language models. -1: Dream."""
    title_join: TitleJoin = "space"
    """Separator of a passage's title and text; `none` omits the title."""
    max_query_tokens: PositiveInt = 128
    """Maximum tokens of a query to score; longer queries are cut."""
    max_passage_tokens: PositiveInt = 512
    """Maximum tokens of a passage; fewer if prompt and query would exceed the model's length."""


class RerankJob(JobConfig):
    """Rerank the top passages of each query of a TREC run; run the same command again to resume."""

    run: Place
    """TREC run to rerank, ordered by score, ties by ascending passage id."""
    collection: str
    """Collection with the queries and passages; see encode_beir.py."""
    split: str = "test"
    """Split of the queries."""
    index: IndexPlace | None = None
    """Folder or object-store URI of an index that provides the passages' texts, in place of the collection."""
    reranker: str
    """Name of a preset, or path of a YAML file of a reranker."""
    backbone: str | None = None
    """Backbone that replaces the reranker's own: folder, object-store URI or hub id."""
    depth: PositiveInt = 100
    """Passages to score per query. The others follow in their previous order, with scores below the lowest reranked
    one."""
    output: Place
    """TREC run to write. OUTPUT.yaml records the settings; OUTPUT.partial stores finished queries until the job is
    done."""
    device: str = "auto"
    """Device: `cpu`, `cuda`, `cuda:1`, or `auto`, a GPU if available."""

    @model_validator(mode="after")
    def _output_is_another_file(self) -> RerankJob:
        if self.run.absolute() == self.output.absolute():
            raise ValueError(f"--output {self.output} would overwrite --run: give another file")
        return self


class RerankSummary(Model):
    """The outcome of one rerank job."""

    queries: int
    """Queries in the run."""
    resumed: int
    """Queries finished by an earlier, interrupted job."""
    passages: int
    """Passages scored by this job."""
    seconds: float
    """Duration of the scoring."""

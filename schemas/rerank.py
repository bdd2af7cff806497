"""Configs of a reranker and of the rerank job, and the job's summary."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.locations import IndexLocation, Location
from diffretriever.schemas.retriever import BackboneConfig, TitleJoin
from diffretriever.schemas.settings import JobConfig


class RerankerBase(Model):
    """Base of reranker configs."""

    backbone: BackboneConfig
    title_join: TitleJoin = "space"
    """Separator of a passage's title and text; `none` omits the title."""


class QueryLikelihoodConfig(RerankerBase):
    """A reranker that scores a passage by log p(query | passage) under a masked diffusion model.

    The model's input is the passage and one mask per query token, which reveals the query's length.
    """

    method: Literal["query-likelihood"] = "query-likelihood"
    read_offset: Literal[0, -1] = 0
    """Position that predicts a token, relative to it. 0: LLaDA and masked language models. -1: Dream."""
    max_query_tokens: PositiveInt = 128
    """Maximum tokens of a query to score; longer queries are cut."""
    max_passage_tokens: PositiveInt = 512
    """Maximum tokens of a passage; fewer if prompt and query would exceed the model's length."""


class DiffuRankConfig(RerankerBase):
    """DiffuRank: a model that is shown the query and passages, and fills in masks of its answer (arXiv 2602.12528)."""

    method: Literal["pointwise", "logits-listwise", "permutation-listwise"]
    """`pointwise`: p(1) against p(0) at one mask, for one passage at a time. `logits-listwise`: the same at one mask a
    passage, for a window of passages. `permutation-listwise`: a mask for each place of the window's ranking."""
    max_passage_words: PositiveInt = 256
    """Maximum words of a passage, title included; fewer if a window would exceed the model's length."""
    window: Annotated[int, Field(ge=1, le=26)] = 20
    """Passages that a listwise method ranks at once, from the end of the ranking to its start. At most 26, the letters
    that name passages."""
    stride: PositiveInt = 10
    """Places between two windows."""
    decoding: Literal["assignment", "greedy"] = "assignment"
    """Ranking from the probabilities of a permutation's places. `assignment`: the likeliest permutation. `greedy`:
    the likeliest pairs, one after the other (`sampling` in the published code)."""
    steps: PositiveInt = 1
    """Passes in which the places of a permutation are filled."""
    rope_factor: PositiveFloat = 1.0
    """Factor of the rotary base and of the maximum length."""

    @model_validator(mode="after")
    def _windows_touch(self) -> DiffuRankConfig:
        if self.stride > self.window:
            raise ValueError(f"stride {self.stride} would skip passages: set at most the window, {self.window}")
        return self


RerankerConfig: TypeAlias = Annotated[QueryLikelihoodConfig | DiffuRankConfig, Field(discriminator="method")]


class RerankJob(JobConfig):
    """Rerank the top passages of each query of a TREC run; run the same command again to resume."""

    run: Location
    """TREC run to rerank, ordered by score, ties by ascending passage id."""
    collection: str
    """Collection with the queries and passages; see encode_beir.py."""
    split: str = "test"
    """Split of the queries."""
    index: IndexLocation | None = None
    """Folder or object-store URI of an index that provides the passages' texts, in place of the collection."""
    reranker: str
    """Name of a preset, or path of a YAML file of a reranker."""
    backbone: str | None = None
    """Backbone that replaces the reranker's own: folder, object-store URI or hub id."""
    depth: PositiveInt = 100
    """Passages to score per query. The others follow in their previous order, with scores below the lowest reranked
    one."""
    output: Location
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
    resumed: int
    """Queries finished by an earlier, interrupted job."""
    passages: int
    """Passages scored by this job."""
    seconds: float
    """Duration of the scoring."""

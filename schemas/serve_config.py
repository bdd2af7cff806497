"""The config of the search application: one file, or `key=value` arguments of `python -m serve`."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import CommaSeparated, Model
from diffretriever.schemas.locations import IndexLocation
from diffretriever.schemas.serve import ServeLimits


class LoadBudget(Model):
    """Lower bounds under load. Reduction starts at a third of `max_ongoing` and reaches these at two thirds."""

    least_query_slots: PositiveInt | None = None
    """Minimum K_q under load, for requests without a number. Default: K_q is not lowered."""
    least_candidates: PositiveInt | None = None
    """Minimum passages per result list of a sum (1000 without load) and per candidate search, at least `k`. Default:
    not lowered."""


class ReplicaConfig(Model):
    """Number and resources of a deployment's replicas."""

    min_replicas: PositiveInt = 1
    """Replicas that always run."""
    max_replicas: PositiveInt = 1
    """Maximum replicas. If it is above `min_replicas`, Ray adds replicas while queues are long."""
    cpus: NonNegativeFloat = 1.0
    """CPUs that Ray reserves per replica."""
    gpus: NonNegativeFloat = 0.0
    """GPUs per replica."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas {self.max_replicas} is below min_replicas {self.min_replicas}: raise max_replicas"
            )
        return self


class ServeConfig(Model):
    """The search application of one index. API keys come only from the environment."""

    index: IndexLocation
    """Folder or object-store URI of the index."""
    layout: Literal["together", "apart"] = "together"
    """Layout of the deployments. `together`: each replica encodes and searches. `apart`: encoders and search shards are
    separate deployments, for models on GPUs and for indexes that do not fit on one node."""
    shards: PositiveInt = 1
    """Shards that the index's fragments are divided into; needs `layout: apart`."""
    shards_needed: PositiveInt | None = None
    """Minimum shards that must answer a search. The response lists the others, those that are down or exceed
    `shard_timeout_s`, in `missing_shards`. Default: all."""
    shard_timeout_s: PositiveFloat | None = None
    """Seconds per search of a shard; needs `shards_needed`. Default: the request's timeout."""
    ingress: ReplicaConfig = ReplicaConfig()
    """Replicas that receive requests; with `layout: together` they also encode and search."""
    encoder: ReplicaConfig = ReplicaConfig()
    """Replicas that encode, with `layout: apart`."""
    shard: ReplicaConfig = ReplicaConfig()
    """Replicas of each shard, with `layout: apart`."""
    backbone: str | None = None
    """New path or hub id of the index's backbone, if it has moved. The weights must be the same."""
    adapter: str | None = None
    """New path or hub id of the index's adapter, if it has moved. The weights must be the same."""
    trust_code: CommaSeparated = ()
    """Models that may run their own Python code in the replicas, separated by commas, in addition to
    DIFFRETRIEVER_TRUST_CODE; see `--trust-code` of jobs/search.py."""
    device: str = "auto"
    """Device of encoding and dense search: `cpu`, `cuda`, or `auto`, the GPU in replicas with `gpus`."""
    threads: PositiveInt | None = None
    """CPU threads per replica; default: its number of CPUs, at least 1."""
    selector: str | None = None
    """Selector of K_q for `budget: adaptive`: `rule`, `fixed:4` or a file. Default: the retriever's."""
    limits: ServeLimits = ServeLimits()
    max_ongoing: PositiveInt = 64
    """Concurrent requests per replica; more are rejected with status 503 and Retry-After."""
    load: LoadBudget = LoadBudget()
    batch_tokens: PositiveInt | None = None
    """Maximum tokens per batch of queries, including padding and slots; default: by device."""
    recorded: bool | None = None
    """Capture forward passes of small batches as CUDA graphs, which halves the query time of a 7B model. The first
    query of a length takes longer. Default: on GPUs, if the encoder supports it."""
    refresh_s: PositiveFloat = 3.0
    """Seconds between checks for a newer version of the index."""
    open: bool = False
    """Start without API keys: all clients that reach the port may search and change the index. Default of
    `python -m serve` if `host` is 127.0.0.1, localhost or ::1."""
    hosts: CommaSeparated = ()
    """Host names that requests may use, separated by commas, in addition to localhost and IP addresses; `*`: any name.
    A server with API keys checks the Host header only if this is set."""
    cors_origins: tuple[str, ...] = ()
    """Web origins that may call the server from a browser, such as https://example.org; default: none."""
    page: bool = True
    """Serve the search page at `/`."""

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if self.layout == "together" and self.shards > 1:
            raise ValueError(f"shards: {self.shards} shards need separate deployments: set layout to apart")
        if (self.shards_needed or 1) > self.shards:
            raise ValueError(f"shards_needed is above the number of shards: give at most {self.shards}")
        if self.shard_timeout_s is not None and self.least_shards == self.shards:
            raise ValueError(f"shard_timeout_s: all shards must answer: set shards_needed below {self.shards}")
        return self

    @property
    def least_shards(self) -> int:
        """Minimum shards that must answer a search."""
        return self.shards_needed or self.shards

    def device_of(self, replica: ReplicaConfig) -> str:
        """Return the device of a replica."""
        # Ray shows every GPU of a node to a replica without a GPU.
        return "cpu" if self.device == "auto" and not replica.gpus else self.device

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any]) -> Self:
        """Build from arguments; a dot separates nested keys: `limits.max_k=100`."""
        values: dict[str, Any] = {}
        for key, value in arguments.items():
            *parts, last = key.split(".")
            nested = values
            for part in parts:
                nested = nested.setdefault(part, {})
            nested[last] = value
        return cls.model_validate(values)

"""The config of the search application: one file, or `key=value` arguments of `python -m serve`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import CommaSeparated, Model
from diffretriever.schemas.places import IndexPlace
from diffretriever.schemas.serve import ServeLimits


class LoadBudget(Model):
    """The least that a request is given under load: from a third of `max_ongoing` on less, from two thirds on this."""

    least_query_slots: PositiveInt | None = None
    """Smallest K_q under load, unless the request gives a number. Default: K_q is never lowered."""
    least_candidates: PositiveInt | None = None
    """Under load, fewest passages of each list of a sum (1000 without load) and of a candidate index, at least `k`.
    Default: never lowered."""


class ReplicaConfig(Model):
    """How many copies of a deployment run, and with what."""

    min_replicas: PositiveInt = 1
    """Copies that always run."""
    max_replicas: PositiveInt = 1
    """More than `min_replicas`: Ray adds copies while queues are long."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs of the cluster that each copy takes."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of each copy."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below min_replicas {self.min_replicas}: raise it")
        return self


class ServeConfig(Model):
    """An application over one index. API keys come from the environment alone."""

    index: IndexPlace
    """Folder or object-store URI of the index."""
    layout: Literal["together", "apart"] = "together"
    """`together`: every replica encodes and searches by itself. `apart`: encoders and search shards are deployments of
    their own, for models on GPUs and for indexes that do not fit one node."""
    shards: PositiveInt = 1
    """Deployments that share the index's fragments, if they are apart."""
    shards_needed: PositiveInt | None = None
    """Shards that must answer a search. If fewer than all are enough, the response names those that are down or later
    than `shard_timeout_s` in `missing_shards`. Default: all."""
    shard_timeout_s: PositiveFloat | None = None
    """Seconds that a shard has for a search. Default: those of the request."""
    ingress: ReplicaConfig = ReplicaConfig()
    """Replicas that take requests; if together, the whole of the work."""
    encoder: ReplicaConfig = ReplicaConfig()
    """Replicas that encode, if they are apart."""
    shard: ReplicaConfig = ReplicaConfig()
    """Replicas of each shard, if they are apart."""
    backbone: str | None = None
    """Where the index's backbone lies now, if it has moved; it must be the same weights."""
    adapter: str | None = None
    """Where its adapter lies now, if it has moved; it must be the same weights."""
    trust_code: CommaSeparated = ()
    """Models whose own Python code may run in the replicas, separated by commas, in addition to
    DIFFRETRIEVER_TRUST_CODE; see `--trust-code` of jobs/search.py."""
    device: str = "auto"
    """Of encoders and dense searches: `cpu`, `cuda`; `auto`: the GPU in replicas with `gpus`, the CPU in others."""
    threads: PositiveInt | None = None
    """Threads of each replica's tensor work; default: as many as it has CPUs, at least 1."""
    selector: str | None = None
    """Selector of K_q for `budget: adaptive`: `rule`, `fixed:4` or a file. Default: the retriever's."""
    limits: ServeLimits = ServeLimits()
    max_ongoing: PositiveInt = 64
    """Requests that a replica processes at a time; more are rejected with status 503 and Retry-After."""
    load: LoadBudget = LoadBudget()
    batch_tokens: PositiveInt | None = None
    """Tokens, padding and slots included, that one batch of queries may have; default: what the device is good for."""
    recorded: bool | None = None
    """Capture the passes of few queries as CUDA graphs, which halves the time of a query of a 7B model; the first query
    of a length takes longer. Default: on GPUs, if the encoder supports it."""
    refresh_s: PositiveFloat = 3.0
    """Seconds between looks for a newer version of the index."""
    open: bool = False
    """Start without API keys: every client that reaches the port may search and change the index. Default of
    `python -m serve` if `host` is 127.0.0.1, localhost or ::1."""
    hosts: CommaSeparated = ()
    """Names of this server that a Host header may give, separated by commas, besides localhost and IP addresses; `*`:
    any name. A server with API keys checks Host only if this is set."""
    cors_origins: tuple[str, ...] = ()
    """Sites whose pages may ask from a browser, such as https://example.org; none by default."""
    page: bool = True
    """Serve the search page at `/`."""

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if self.layout == "together" and self.shards > 1:
            raise ValueError("shards: several shards need layout: apart")
        if (self.shards_needed or 1) > self.shards:
            raise ValueError(f"shards_needed: there are {self.shards} shards")
        if self.shard_timeout_s is not None and self.least_shards == self.shards:
            raise ValueError("shard_timeout_s: say by shards_needed how many must answer")
        return self

    @property
    def least_shards(self) -> int:
        """Shards that must answer a search."""
        return self.shards_needed or self.shards

    def device_of(self, replica: ReplicaConfig) -> str:
        """Return the device of a deployment's replicas."""
        # Ray shows every GPU of a node to a replica without a GPU.
        return "cpu" if self.device == "auto" and not replica.gpus else self.device

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any]) -> Self:
        """Build from arguments, in which a dot goes into a part: `limits.max_k=100`."""
        values: dict[str, Any] = {}
        for key, value in arguments.items():
            *parts, last = key.split(".")
            place = values
            for part in parts:
                place = place.setdefault(part, {})
            place[last] = value
        return cls.model_validate(values)

"""The config of the search application: one file, or `key=value` arguments of `python -m serve`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import CommaSeparated, Model
from diffretriever.schemas.places import IndexPlace
from diffretriever.schemas.serve import ServeLimits


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
    """An application over one index.

    API keys come from the environment alone: that of DIFFRETRIEVER_API_KEY may do everything, that of
    DIFFRETRIEVER_READ_KEY may search. With the second alone nobody can write; with neither, see `open`.
    """

    index: IndexPlace
    """Folder or object-store URI of the index."""
    layout: Literal["together", "apart"] = "together"
    """`together`: every replica encodes and searches by itself, the fewest hops. `apart`: encoders and search shards
    are deployments of their own, for models on GPUs and for indexes that one machine does not hold."""
    shards: PositiveInt = 1
    """Deployments that share the index's fragments, if they are apart."""
    shards_needed: PositiveInt | None = None
    """Shards that must answer a search. Where fewer than all are enough, the passages of one that is dead, or late by
    `shard_timeout_s`, are left out, and `missing_shards` in the answer says so; else it is refused. Default: all."""
    shard_timeout_s: PositiveFloat | None = None
    """Seconds that a shard has for a search before it is left out; default: as long as the request has."""
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
    """Models whose own Python code may run in the replicas, if the index's retriever asks for it; separated by commas.
    See `--trust-code` of jobs/search.py; DIFFRETRIEVER_TRUST_CODE where the application is built adds to it."""
    device: str = "auto"
    """Of encoders and of dense searches: `cpu`, `cuda`; `auto`: a GPU in replicas that have one of their own (`gpus`),
    the CPU in others."""
    memory_mb: PositiveInt = 1024
    """MiB of memory that scoring may use beside the model, in each replica."""
    threads: PositiveInt | None = None
    """Threads of each replica's tensor work; default: as many as it has CPUs, at least 1."""
    selector: str | None = None
    """What chooses K_q for `budget: adaptive`: `rule`, `fixed:4`, or the file of a fitted selector; default: what the
    retriever names as its `default_selector`."""
    limits: ServeLimits = ServeLimits()
    max_ongoing: PositiveInt = 64
    """Requests that a replica processes at a time; more are rejected with status 503 and Retry-After."""
    max_queued: PositiveInt = 256
    """Requests that wait for a replica at each of Ray's routers, before those are refused too."""
    batch_tokens: PositiveInt | None = None
    """Tokens, padding and slots included, that one batch of queries may have; default: what the device is good for."""
    recorded: bool | None = None
    """Record the passes of single queries, and of few, for replay (CUDA graphs): a model of 7 billion parameters on a
    GPU then takes half the time for a query. The first query of a length takes longer. Default: on GPUs, where the
    encoder can be recorded."""
    refresh_s: PositiveFloat = 3.0
    """Seconds between looks for a newer version of the index."""
    open: bool = False
    """Start without API keys: every client that reaches the port may search and change the index. `python -m serve`
    does so by itself where `host` is 127.0.0.1, localhost or ::1."""
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
        """Return the device of a deployment's replicas.

        Ray shows every GPU of a machine to a replica that was given none, those of other replicas too.
        """
        return "cpu" if self.device == "auto" and not replica.gpus else self.device

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any]) -> Self:
        """Build from arguments, in which a dot goes into a part: `limits.max_k=100`.

        Raises:
            ValueError: an unknown or malformed setting, named.
        """
        values: dict[str, Any] = {}
        for key, value in arguments.items():
            *parts, last = key.split(".")
            place = values
            for part in parts:
                place = place.setdefault(part, {})
            place[last] = value
        return cls.model_validate(values)

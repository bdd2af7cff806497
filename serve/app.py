"""The search application: run it here with `python -m serve index=FOLDER`, or deploy it with config.yaml on a cluster.

In the layout `together`, every ingress replica encodes and searches by itself. In the layout `apart`, the ingress
prepares queries and merges results, and encoder replicas and shards do the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from diffretriever.core.consent import trusted_sources
from diffretriever.core.files import is_local
from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.search import SearchOptions
from diffretriever.schemas.serve import PartState, Reading
from diffretriever.schemas.serve_config import ReplicaConfig, ServeConfig
from diffretriever.search.batch import to_table
from diffretriever.serve.metrics import RayMetrics, exposition
from diffretriever.serve.remote import RemoteBackend
from diffretriever.serving.api import make_api
from diffretriever.serving.backend import Batcher, Lists, encode_together, search_together
from diffretriever.serving.guard import KEY_VARIABLES, Keys
from diffretriever.serving.opening import open_encoder, open_index, open_preparer, open_service
from diffretriever.serving.service import Service
from diffretriever.serving.snapshots import SearchSpec, Snapshots, Version
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.representations import Representations

_PAGE = Path(__file__).parent / "static"
_LOG = logging.getLogger("ray.serve")


_QUERIES_PER_SCAN = 64
"""Maximum number of queries that share a scan of the index."""
_MOST_QUEUED = 256
"""Requests that wait for a replica at each of Ray's routers; more are rejected with status 503."""


class QueryEncoder:
    """Encodes prepared queries, as the deployment `Encoder`."""

    def __init__(self, config: ServeConfig) -> None:
        _use_threads(config, config.encoder)
        self._encoder = open_encoder(config, open_index(config), config.device_of(config.encoder))
        self._batcher: Batcher[list[PreparedText], Representations] = Batcher(
            "encode",
            partial(encode_together, self._encoder),
            lambda texts: sum(len(text.input_ids) for text in texts),
            self._encoder.tokens_per_batch,
            RayMetrics(),
        )

    async def encode(self, texts: list[PreparedText]) -> Representations:
        """Encode the queries of one request, batched with other requests."""
        return await self._batcher(texts)

    async def read(self, vectors_MH: np.ndarray, words: int) -> list[Reading]:
        """See `Encoder.read`."""
        return await asyncio.to_thread(self._encoder.read, vectors_MH, words)

    async def ping(self) -> None:
        """Return at once, as a liveness check."""


class Shard:
    """Searches its part of the index's fragments."""

    def __init__(self, config: ServeConfig, number: int) -> None:
        from diffretriever.backbones.device import resolve_device

        _use_threads(config, config.shard)
        device, measure = resolve_device(config.device_of(config.shard)), RayMetrics()
        options = SearchOptions(index=config.index)
        self._snapshots = Snapshots(options, device, (number, config.shards), measure)
        self._snapshots.get(Version.of(open_index(config)))
        self._batcher: Batcher[tuple[Representations, SearchSpec], Lists] = Batcher(
            "search",
            partial(search_together, self._snapshots),
            lambda request: len(request[0]),
            _QUERIES_PER_SCAN,
            measure,
        )

    async def search(self, queries: Representations, spec: SearchSpec) -> dict[str, pa.Table]:
        """Search for the queries of one request, batched with others; return a table of `to_table` per result list."""
        tables: dict[str, pa.Table] = {}
        for name, hits in (await self._batcher((queries, spec))).items():
            assert isinstance(hits, Hits), "shards return exact scores"
            tables[name] = to_table(hits, with_rows=True)
        return tables

    async def open(self, version: Version) -> None:
        """Open a version; the previous ones stay open."""
        await asyncio.to_thread(self._snapshots.get, version)

    async def state(self, version: Version) -> PartState:
        """See `Snapshot.state`."""
        snapshot = await asyncio.to_thread(self._snapshots.get, version)
        return snapshot.state

    async def ping(self) -> None:
        """Return at once, as a liveness check."""


class Ingress:
    """Handles HTTP requests."""

    def __init__(
        self,
        config: ServeConfig,
        keys: Keys,
        encoder: DeploymentHandle | None = None,
        shards: tuple[DeploymentHandle, ...] = (),
    ) -> None:
        """Serve an index; pass the encoder and shard deployments if the layout is `apart`."""
        _use_threads(config, config.ingress)
        self._config, self._keys = config, keys
        if encoder is None:
            self._service = open_service(config, RayMetrics())
        else:
            index, backend = open_index(config), RemoteBackend(config, encoder, shards)
            self._service = Service(config, index, open_preparer(config, index), backend, RayMetrics())
        self._watch: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the ASGI application. Ray calls this once, in the replica."""
        self._watch = asyncio.get_running_loop().create_task(self._follow())
        return make_api(self._service, self._keys, _PAGE if self._config.page else None, exposition)

    async def ping(self) -> None:
        """Return at once, as a liveness check."""

    async def check_health(self) -> None:
        """Fail if another retriever's index has replaced this one, so that Ray restarts the replica."""
        if self._service.is_other_retriever:
            raise RuntimeError(f"{self._config.index} was replaced by an index of another retriever")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._config.refresh_s)
            try:
                await self._service.refresh()
            except Exception:
                _LOG.exception("cannot read the newest version of the index: serving the open one")


def settings(arguments: dict[str, Any]) -> ServeConfig:
    """Return the config from arguments; DIFFRETRIEVER_INDEX is the default of `index`."""
    values = {"index": os.environ.get("DIFFRETRIEVER_INDEX"), **arguments}
    config = ServeConfig.from_arguments({name: value for name, value in values.items() if value is not None})
    if is_local(config.index):
        config = config.model_copy(update={"index": str(Path(config.index).absolute())})
    # Replicas run in other directories, with another environment.
    return config.model_copy(update={"trust_code": trusted_sources(config.trust_code)})


def search_app(arguments: dict[str, Any]) -> Application:
    """Build the application from settings of `ServeConfig`; raise ValueError for a bad setting or key."""
    config = settings(arguments)
    # Replicas get digests, so that keys stay out of Ray's store and logs.
    keys = Keys.from_environment()
    if keys.are_unset and not config.open:
        raise ValueError(
            f"no API key: set {' or '.join(KEY_VARIABLES)}, or open=true to let every client that reaches the server "
            "search and change the index"
        )
    ingress = serve.deployment(**_options(config, config.ingress))(serve.ingress()(Ingress))
    if config.layout == "together":
        return ingress.bind(config, keys)
    encoder = serve.deployment(name="Encoder", **_options(config, config.encoder))(QueryEncoder)
    shard = serve.deployment(**_options(config, config.shard))(Shard)
    shards = tuple(shard.options(name=f"Shard{number}").bind(config, number) for number in range(config.shards))
    return ingress.bind(config, keys, encoder.bind(config), shards)


def _options(config: ServeConfig, replica: ReplicaConfig) -> dict[str, Any]:
    scaling: dict[str, Any] = {"num_replicas": replica.min_replicas}
    if replica.max_replicas > replica.min_replicas:
        target = max(1, config.max_ongoing // 4)
        bounds = {"min_replicas": replica.min_replicas, "max_replicas": replica.max_replicas}
        scaling = {"autoscaling_config": {**bounds, "target_ongoing_requests": target}}
    return {
        **scaling,
        "ray_actor_options": {"num_cpus": replica.cpus, "num_gpus": replica.gpus},
        # The replica itself rejects requests above `max_ongoing`, with a problem; others may still be uploading.
        "max_ongoing_requests": 3 * config.max_ongoing,
        "max_queued_requests": _MOST_QUEUED,
        "backpressure_config": {"status_code": 503, "retry_after_s": 1},
        "graceful_shutdown_timeout_s": config.limits.timeout_s + 5,
        "health_check_period_s": 1,
    }


def _use_threads(config: ServeConfig, replica: ReplicaConfig) -> None:
    import torch

    torch.set_num_threads(config.threads or max(1, int(replica.cpus)))

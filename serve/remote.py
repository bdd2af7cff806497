"""Encoding and searching by other deployments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from ray.serve.handle import DeploymentHandle

from diffretriever.encoders.preparer import PreparedText
from diffretriever.schemas.mode import ListName
from diffretriever.schemas.serve import PartState, Reading
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.search.batch import merge, to_hits
from diffretriever.serve.replicas import Replicas
from diffretriever.serving.backend import Found
from diffretriever.serving.problems import UnavailableError
from diffretriever.serving.snapshots import SearchSpec, Version
from diffretriever.vectors.representations import Representations

T = TypeVar("T")


class RemoteBackend:
    """Calls an encoder deployment and the deployments of the shards. Create it on the event loop."""

    batch_tokens = 0

    def __init__(self, config: ServeConfig, encoder: DeploymentHandle, shards: Sequence[DeploymentHandle]) -> None:
        """Call these deployments; `shards` are in the order of their numbers."""
        self._encoder, self._shards = Replicas(encoder), [Replicas(shard) for shard in shards]
        self._needed, self._shard_s = config.least_shards, config.shard_timeout_s
        self._request_s = config.limits.timeout_s
        self._loop = asyncio.get_running_loop()
        self.threads = config.max_ongoing

    def encode(self, requests: Sequence[list[PreparedText]]) -> list[Representations]:
        """See `Backend`."""
        return [self._wait(self._encoder.ask("encode", texts)) for texts in requests]

    def find(self, requests: Sequence[tuple[Representations, SearchSpec]]) -> list[tuple[Found, tuple[int, ...]]]:
        """Search all shards and merge their lists. If all answer, the result is that of one search of the whole."""
        return [self._find(queries, spec) for queries, spec in requests]

    def _find(self, queries: Representations, spec: SearchSpec) -> tuple[Found, tuple[int, ...]]:
        if not spec.lists:
            return {}, ()
        answers = self._wait(self._ask_shards("find", queries, spec))
        merged: dict[ListName, pa.Table] = {
            name: merge([part[name] for part in answers.values()], spec.depth) for name in spec.lists
        }
        missing = tuple(number for number in range(len(self._shards)) if number not in answers)
        return to_hits(merged, len(queries)), missing

    def read(self, vectors_MH: np.ndarray, words: int) -> list[Reading]:
        """See `Backend`."""
        readings: list[Reading] = self._wait(self._encoder.ask("read", vectors_MH, words))
        return readings

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work on the event loop, from another thread; the request has ended by the timeout."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._request_s)
        finally:
            future.cancel()

    async def _ask_shards(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Return the answers of the shards by number, of as many as are needed or more."""
        return await self._enough(
            asyncio.wait_for(shard.ask(method, *arguments), self._shard_s) for shard in self._shards
        )

    async def _enough(self, calls: Iterable[Awaitable[Any]]) -> dict[int, Any]:
        """Return the result of a call to each shard, by number; raise if fewer than are needed have one."""
        # If all are needed, the first error ends it.
        answers = await asyncio.gather(*calls, return_exceptions=self._needed < len(self._shards))
        lost = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in lost:
            if not isinstance(error, UnavailableError | TimeoutError):
                raise error
        if len(answers) - len(lost) < self._needed:
            raise UnavailableError(f"{len(lost)} of {len(answers)} shards of the index do not answer")
        return {number: each for number, each in enumerate(answers) if not isinstance(each, BaseException)}

    async def open(self, version: Version) -> None:
        """Have all replicas of all shards open a version; a replica that replaces a dead one opens it by itself."""
        await asyncio.gather(*(shard.broadcast("open", version) for shard in self._shards))

    async def parts(self, version: Version) -> list[PartState]:
        """See `Backend`."""
        return list((await self._ask_shards("state", version)).values())

    async def check(self) -> None:
        """Return if an encoder and as many shards as are needed are alive."""
        await asyncio.gather(self._encoder.check(), self._enough(shard.check() for shard in self._shards))

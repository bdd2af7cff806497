"""A backend that encodes and searches through other deployments."""

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
from diffretriever.serving.backend import Lists
from diffretriever.serving.problems import UnavailableError
from diffretriever.serving.snapshots import SearchSpec, Version
from diffretriever.vectors.representations import Representations

T = TypeVar("T")


class RemoteBackend:
    """Calls the encoder deployment and the shard deployments. Create it on the event loop."""

    batch_tokens = 0

    def __init__(self, config: ServeConfig, encoder: DeploymentHandle, shards: Sequence[DeploymentHandle]) -> None:
        """Set the deployments; `shards` is in order of shard number."""
        self._encoder, self._shards = Replicas(encoder), [Replicas(shard) for shard in shards]
        self._needed, self._shard_s = config.least_shards, config.shard_timeout_s
        self._request_s = config.limits.timeout_s
        self._loop = asyncio.get_running_loop()
        self.threads = config.max_ongoing

    def encode(self, requests: Sequence[list[PreparedText]]) -> list[Representations]:
        """See `Backend`."""
        return [self._wait(self._encoder.call("encode", texts)) for texts in requests]

    def search(self, requests: Sequence[tuple[Representations, SearchSpec]]) -> list[tuple[Lists, tuple[int, ...]]]:
        """Search all shards and merge their lists. If all respond, the result equals a search of the whole index."""
        return [self._search_shards(queries, spec) for queries, spec in requests]

    def _search_shards(self, queries: Representations, spec: SearchSpec) -> tuple[Lists, tuple[int, ...]]:
        if not spec.lists:
            return {}, ()
        answers = self._wait(self._call_shards("search", queries, spec))
        merged: dict[ListName, pa.Table] = {
            name: merge([part[name] for part in answers.values()], spec.depth) for name in spec.lists
        }
        missing = tuple(number for number in range(len(self._shards)) if number not in answers)
        return to_hits(merged, len(queries)), missing

    def read(self, vectors_MH: np.ndarray, words: int) -> list[Reading]:
        """See `Backend`."""
        readings: list[Reading] = self._wait(self._encoder.call("read", vectors_MH, words))
        return readings

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the event loop from another thread, up to the request timeout."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._request_s)
        finally:
            future.cancel()

    async def _call_shards(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Return the results by shard number; raise UnavailableError if too few shards respond."""
        return await self._enough(
            asyncio.wait_for(shard.call(method, *arguments), self._shard_s) for shard in self._shards
        )

    async def _enough(self, calls: Iterable[Awaitable[Any]]) -> dict[int, Any]:
        # If all are needed, stop at the first error.
        answers = await asyncio.gather(*calls, return_exceptions=self._needed < len(self._shards))
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, UnavailableError | TimeoutError):
                raise error
        if len(answers) - len(errors) < self._needed:
            raise UnavailableError(f"{len(errors)} of {len(answers)} shards of the index do not respond")
        return {number: answer for number, answer in enumerate(answers) if not isinstance(answer, BaseException)}

    async def open(self, version: Version) -> None:
        """Open a version on all replicas of all shards. A replacement replica opens it by itself."""
        await asyncio.gather(*(shard.broadcast("open", version) for shard in self._shards))

    async def parts(self, version: Version) -> list[PartState]:
        """See `Backend`."""
        return list((await self._call_shards("state", version)).values())

    async def check(self) -> None:
        """Raise UnavailableError unless an encoder and enough shards are alive."""
        await asyncio.gather(self._encoder.check(), self._enough(shard.check() for shard in self._shards))

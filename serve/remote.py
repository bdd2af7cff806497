"""Encoding and searching by other deployments: what they lack for the moment becomes a problem of status 503."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.search.hit_tables import merge, to_hits
from diffretriever.serving.answering import Answering, Found, Job, Searched, Wanted
from diffretriever.serving.problems import UnavailableError
from schemas.serve import SearchResponse

_ATTEMPTS = 2
"""A replica that dies takes its requests with it; they change nothing, so another replica may have them."""


class RemoteBackend:
    """Asks an encoder deployment and the deployments of the shards."""

    def __init__(self, encoder: DeploymentHandle, shards: Sequence[DeploymentHandle], answering: Answering) -> None:
        self._encoder, self._shards = encoder, list(shards)
        self._answering = answering

    async def answer(self, job: Job) -> SearchResponse:
        """Plan and finish here; have others encode and search."""
        answering, clock, request = self._answering, job.clock, job.request
        planned = await asyncio.to_thread(answering.plan, request.query, request.budget)
        clock.done("choose")
        queries = await self.encode([query.prepared for query in planned])
        clock.done("encode")
        found = await self._find(queries, job.wanted)
        clock.done("search")
        (answer,) = await asyncio.to_thread(answering.finish, [Searched(job, planned, queries, found)])
        return answer

    async def encode(self, texts: list[PreparedText]) -> Representations:
        """Represent texts, in their order."""
        encoded: Representations = await _ask(self._encoder.encode, texts)
        return encoded

    async def _find(self, queries: Representations, wanted: Wanted) -> Found:
        """Search all shards, and merge what they find: the same as one search of the whole."""
        parts: list[dict[Any, pa.Table]] = await asyncio.gather(
            *(_ask(shard.find, queries, wanted) for shard in self._shards)
        )
        return {
            name: to_hits(merge([part[name] for part in parts], wanted.depth), len(queries)) for name in wanted.lists
        }

    async def open(self, version: int) -> None:
        """Have every replica of every shard open a version."""
        await asyncio.gather(*(shard.broadcast("open", version).results_async() for shard in self._shards))


async def _ask(method: Any, *arguments: Any) -> Any:
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await method.remote(*arguments)
        except RayActorError:
            if not left:
                raise UnavailableError("a replica has just died and is being replaced") from None
        except (BackPressureError, DeploymentUnavailableError):
            raise UnavailableError("too many requests are waiting") from None
    return None

"""Encoding and searching by other deployments: what they lack for the moment becomes a problem of status 503."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from ray.serve.handle import DeploymentHandle

from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.search.batch import ListName
from diffretriever.search.hit_tables import merge, to_hits
from diffretriever.serving.answering import Answering, Found, Job, Searched, Wanted, refused
from schemas.serve import SearchResponse
from schemas.serve_index import Way
from serve.replicas import Replicas


class RemoteBackend:
    """Asks an encoder deployment and the deployments of the shards."""

    def __init__(self, encoder: DeploymentHandle, shards: Sequence[DeploymentHandle], answering: Answering) -> None:
        self._encoder, self._shards = Replicas(encoder), [Replicas(shard) for shard in shards]
        self._answering = answering

    async def answer(self, job: Job) -> SearchResponse:
        """Plan and finish here; have others encode and search."""
        answering, clock, request = self._answering, job.clock, job.request
        planned = await asyncio.to_thread(answering.plan, request.query, request.budget)
        clock.done("choose")
        queries = await self.encode([query.prepared for query in planned])
        clock.done("encode")
        problem = refused(planned, queries)
        if problem is not None:
            raise problem
        found = await self._find(queries, job.wanted)
        clock.done("search")
        (answer,) = await asyncio.to_thread(answering.finish, [Searched(job, planned, queries, found)])
        return answer

    async def encode(self, texts: list[PreparedText]) -> Representations:
        """Represent texts, in their order."""
        encoded: Representations = await self._encoder.ask("encode", texts)
        return encoded

    async def _find(self, queries: Representations, wanted: Wanted) -> Found:
        """Search all shards, and merge what they find: the same as one search of the whole."""
        parts: list[dict[Any, pa.Table]] = await asyncio.gather(
            *(shard.ask("find", queries, wanted) for shard in self._shards)
        )
        return {
            name: to_hits(merge([part[name] for part in parts], wanted.depth), len(queries)) for name in wanted.lists
        }

    async def open(self, version: int) -> None:
        """Have every replica of every shard open a version; who takes the place of a dead one does so by itself."""
        await asyncio.gather(*(shard.tell("open", version) for shard in self._shards))

    async def check(self) -> None:
        """Look whether an encoder and every shard are alive."""
        await asyncio.gather(*(replicas.check() for replicas in (self._encoder, *self._shards)))

    async def ways(self, version: int) -> list[dict[ListName, Way]]:
        """Ask every shard how it finds passages."""
        return list(await asyncio.gather(*(shard.ask("ways", version) for shard in self._shards)))

"""Encoding and searching by other deployments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from ray.serve.handle import DeploymentHandle

from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.schemas.mode import ListName
from diffretriever.schemas.serve import PartState, Reading, SearchResponse
from diffretriever.search.batch import merge, to_hits
from diffretriever.serve.replicas import Replicas
from diffretriever.serving.answering import (
    Answering,
    CheckedRequest,
    Found,
    Read,
    Searched,
    SearchSpec,
    not_finite_problem,
    with_bm25,
)
from diffretriever.serving.snapshots import Version


class RemoteBackend:
    """Asks an encoder deployment and the deployments of the shards."""

    def __init__(self, encoder: DeploymentHandle, shards: Sequence[DeploymentHandle], answering: Answering) -> None:
        self._encoder, self._shards = Replicas(encoder), [Replicas(shard) for shard in shards]
        self._answering = answering

    async def answer(self, request: CheckedRequest) -> SearchResponse:
        """Plan and finish here; have others encode and search."""
        answering, clock, asked = self._answering, request.clock, request.asked
        planned = await asyncio.to_thread(answering.plan, asked.query, asked.budget, request.caps.query_slots)
        clock.done("choose")
        queries = await self.encode([query.prepared for query in planned])
        clock.done("encode")
        problem = not_finite_problem(planned, queries)
        if problem is not None:
            raise problem
        found = await self._find(queries, request.spec) if request.spec.lists else {}
        if request.bm25 is not None:
            found = await asyncio.to_thread(with_bm25, request, planned, found)
        clock.done("search")
        searched = [Searched(request, planned, queries, found)]
        (answer,) = await asyncio.to_thread(answering.finish, searched, self._reader())
        return answer

    def _reader(self) -> Read:
        """Return what has the encoder read vectors as words, for a thread beside the event loop, which waits for it."""
        loop = asyncio.get_running_loop()

        def read(vectors_MH: np.ndarray, words: int) -> list[Reading]:
            asked = self._encoder.ask("read", vectors_MH, words)
            readings: list[Reading] = asyncio.run_coroutine_threadsafe(asked, loop).result()
            return readings

        return read

    async def encode(self, texts: list[PreparedText]) -> Representations:
        """Represent texts, in their order."""
        encoded: Representations = await self._encoder.ask("encode", texts)
        return encoded

    async def _find(self, queries: Representations, spec: SearchSpec) -> Found:
        """Search all shards, and merge what they find: the same as one search of the whole."""
        parts: list[dict[Any, pa.Table]] = await asyncio.gather(
            *(shard.ask("find", queries, spec) for shard in self._shards)
        )
        merged: dict[ListName, pa.Table] = {
            name: merge([part[name] for part in parts], spec.depth) for name in spec.lists
        }
        return to_hits(merged, len(queries))

    async def open(self, version: Version) -> None:
        """Have every replica of every shard open a version; who takes the place of a dead one does so by itself."""
        await asyncio.gather(*(shard.broadcast("open", version) for shard in self._shards))

    async def check(self) -> None:
        """Look whether an encoder and every shard are alive."""
        await asyncio.gather(*(replicas.check() for replicas in (self._encoder, *self._shards)))

    async def parts(self, version: Version) -> list[PartState]:
        """Ask every shard what it holds."""
        return list(await asyncio.gather(*(shard.ask("state", version) for shard in self._shards)))

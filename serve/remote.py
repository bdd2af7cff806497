"""Encoding and searching by other deployments, and hearing at once where no replica of one is alive.

Ray keeps a request until there is a replica for it, which after a death takes as long as loading a model. So whoever
has waited for a moment, or has lost a replica, looks whether anybody is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.representations import Representations
from diffretriever.search.batch import merge, to_hits
from diffretriever.serving.answering import (
    Answering,
    CheckedRequest,
    Found,
    Searched,
    SearchSpec,
    not_finite_problem,
    with_bm25,
)
from diffretriever.serving.problems import UnavailableError
from diffretriever.serving.snapshots import Version
from schemas.mode import ListName
from schemas.serve import PartState, SearchResponse

_GONE = "a replica has died and is being replaced"
_PATIENCE_S = 0.5
"""Seconds between looks, for a request that waits."""
_LOOK_S = 5.0
"""Seconds that replicas have to answer. One that has not answered by then may be busy: it is not taken for dead."""


class Replicas:
    """The replicas of one deployment, which need a method `ping`. To be used from one event loop."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._are_gone = False
        self._looking: asyncio.Task[None] | None = None

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Return what one replica answers.

        A replica that dies takes its requests with it. They change nothing, so another may have them, once.

        Raises:
            UnavailableError: no replica is alive, two have died on the request, or too many requests wait already.
        """
        if self._are_gone:
            await self.check()
        try:
            try:
                return await self._answer(method, arguments)
            except RayActorError:
                await self.check()
                return await self._answer(method, arguments)
        except (RayActorError, DeploymentUnavailableError):
            raise UnavailableError(_GONE) from None
        except BackPressureError:
            raise UnavailableError("too many requests are waiting") from None

    async def broadcast(self, method: str, *arguments: Any) -> int:
        """Call a method of every replica, and return how many have done it; those that are dead do not count."""
        try:
            told = await self._handle.broadcast(method, *arguments).results_async(return_exceptions=True)
        except DeploymentUnavailableError:
            return 0
        for result in told:
            if isinstance(result, BaseException) and not isinstance(result, RayActorError):
                raise result
        return sum(not isinstance(result, RayActorError) for result in told)

    async def check(self) -> None:
        """Raise `UnavailableError` if no replica is alive. All who want to know at the same time share one look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ping())
        await asyncio.shield(self._looking)
        if self._are_gone:
            raise UnavailableError(_GONE)

    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        answer = asyncio.ensure_future(getattr(self._handle, method).remote(*arguments))
        try:
            while not (await asyncio.wait({answer}, timeout=_PATIENCE_S))[0]:
                await self.check()
        finally:
            answer.cancel()
        return answer.result()

    async def _ping(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_S):
                self._are_gone = not await self.broadcast("ping")
        except TimeoutError:
            self._are_gone = False


class RemoteBackend:
    """Asks an encoder deployment and the deployments of the shards."""

    def __init__(self, encoder: DeploymentHandle, shards: Sequence[DeploymentHandle], answering: Answering) -> None:
        self._encoder, self._shards = Replicas(encoder), [Replicas(shard) for shard in shards]
        self._answering = answering

    async def answer(self, request: CheckedRequest) -> SearchResponse:
        """Plan and finish here; have others encode and search."""
        answering, clock = self._answering, request.clock
        planned = await asyncio.to_thread(answering.plan, request.asked.query, request.asked.budget)
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
        (answer,) = await asyncio.to_thread(answering.finish, [Searched(request, planned, queries, found)])
        return answer

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

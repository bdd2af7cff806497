"""Encoding and searching by other deployments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from ray.serve.handle import DeploymentHandle

from diffretriever.encoders.preparer import PreparedText
from diffretriever.representations import Representations
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
from diffretriever.serving.problems import UnavailableError
from diffretriever.serving.snapshots import Version


class RemoteBackend:
    """Asks an encoder deployment and the deployments of the shards."""

    def __init__(
        self,
        encoder: DeploymentHandle,
        shards: Sequence[DeploymentHandle],
        answering: Answering,
        needed: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Ask these deployments.

        Args:
            encoder: encodes.
            shards: search, in the order of their numbers.
            answering: plans and finishes.
            needed: shards that must answer a search; None: all.
            timeout_s: seconds that a shard has, where fewer than all are needed.
        """
        self._encoder, self._shards = Replicas(encoder), [Replicas(shard) for shard in shards]
        self._answering, self._timeout_s = answering, timeout_s
        self._needed = len(shards) if needed is None else needed

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
        found, missing = await self.find(queries, request.spec) if request.spec.lists else ({}, ())
        if request.bm25 is not None:
            found = await asyncio.to_thread(with_bm25, request, planned, found)
        clock.done("search")
        searched = [Searched(request, planned, queries, found)]
        (answer,) = await asyncio.to_thread(answering.finish, searched, self._reader())
        if not missing:
            return answer
        answering.metrics.partial()
        return answer.model_copy(update={"missing_shards": missing})

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

    async def find(self, queries: Representations, spec: SearchSpec) -> tuple[Found, tuple[int, ...]]:
        """Search all shards, and merge what they find: the same as one search of the whole, if all answer.

        Returns:
            What is found, and the numbers of the shards that did not answer.

        Raises:
            UnavailableError: fewer than are needed answered.
        """
        # What is merged is exact.
        answers = await self._ask_shards("find", queries, spec)
        parts = list(answers.values())
        merged: dict[ListName, pa.Table] = {
            name: merge([part[name] for part in parts], spec.depth) for name in spec.lists
        }
        missing = tuple(number for number in range(len(self._shards)) if number not in answers)
        return to_hits(merged, len(queries)), missing

    async def _ask_shards(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Return the answers of the shards by number, of as many as are needed or more."""
        return await self._enough(
            asyncio.wait_for(shard.ask(method, *arguments), self._timeout_s) for shard in self._shards
        )

    async def _enough(self, asked: Iterable[Awaitable[Any]]) -> dict[int, Any]:
        """Return what comes of asking each shard, by number; raise where fewer than are needed are there."""
        # Where all are needed, the first that is lost ends it.
        answers = await asyncio.gather(*asked, return_exceptions=self._needed < len(self._shards))
        lost = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in lost:
            if not isinstance(error, UnavailableError | TimeoutError):
                raise error
        if len(answers) - len(lost) < self._needed:
            raise UnavailableError(f"{len(lost)} of {len(answers)} shards of the index do not answer")
        return {number: each for number, each in enumerate(answers) if not isinstance(each, BaseException)}

    async def open(self, version: Version) -> None:
        """Have every replica of every shard open a version; who takes the place of a dead one does so by itself."""
        await asyncio.gather(*(shard.broadcast("open", version) for shard in self._shards))

    async def check(self) -> None:
        """Look whether an encoder and as many shards as are needed are alive."""
        await asyncio.gather(self._encoder.check(), self._enough(shard.check() for shard in self._shards))

    async def parts(self, version: Version) -> list[PartState]:
        """Ask every shard what it holds."""
        return list((await self._ask_shards("state", version)).values())

"""The replicas of a deployment, and hearing at once where none of them is alive.

Ray keeps a request until there is a replica for it, which after a death takes as long as loading a model. So whoever
has waited for a moment, or has lost a replica, looks whether anybody is there. Proxies use this too: no torch here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeStatus

from diffretriever.serving.problems import UnavailableError

T = TypeVar("T")
_GONE = "a replica has died and is being replaced"
_PATIENCE_S = 0.5
"""Seconds between looks, for a request that waits."""
_LOOK_S = 5.0
"""Seconds that replicas have to answer. One that has not answered by then may be busy: it is not taken for dead."""
_STATUS_S = 1.0
"""Seconds that Ray Serve's controller has to say whether a deployment goes on: it may have died, too."""


class Replicas:
    """The replicas of one deployment, which need a method `ping`. To be used from one event loop."""

    def __init__(self, handle: DeploymentHandle, application: str | None = None) -> None:
        """Watch over the replicas of `handle`; while their `application` is being deployed, new ones are waited for."""
        self._handle, self._application = handle, application
        self._are_gone = False
        self._looking: asyncio.Task[None] | None = None
        self._status: asyncio.Task[ServeStatus] | None = None

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Return the answer of one replica, or raise `UnavailableError`.

        A replica that dies takes its requests with it. They change nothing, so another replica gets them, once.
        """
        try:
            try:
                return await self.while_alive(partial(getattr(self._handle, method).remote, *arguments))
            except RayActorError:
                await self.check()
                return await self.while_alive(partial(getattr(self._handle, method).remote, *arguments))
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

    async def while_alive(self, start: Callable[[], Awaitable[T]]) -> T:
        """Return the result of work that `start` begins; give it up with `UnavailableError` if no replica is alive."""
        if self._are_gone:
            await self.check()
        work = asyncio.ensure_future(start())
        try:
            while not (await asyncio.wait({work}, timeout=_PATIENCE_S))[0]:
                await self.check()
        finally:
            work.cancel()
        return work.result()

    async def check(self) -> None:
        """Raise `UnavailableError` if no replica is alive. All who want to know at the same time share one look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ping())
        await asyncio.shield(self._looking)
        if self._are_gone:
            raise UnavailableError(_GONE)

    async def _ping(self) -> None:
        self._are_gone = not (await self._any_answers() or await self._are_being_deployed())

    async def _any_answers(self) -> bool:
        try:
            async with asyncio.timeout(_LOOK_S):
                return bool(await self.broadcast("ping"))
        except TimeoutError:
            return True

    async def _are_being_deployed(self) -> bool:
        """Return whether the application is being deployed anew, or was a moment ago."""
        if self._application is None:
            return False
        # A controller that does not answer holds up one thread, not one for every look.
        if self._status is None or self._status.done():
            self._status = asyncio.create_task(asyncio.to_thread(serve.status))
        if not (await asyncio.wait({self._status}, timeout=_STATUS_S))[0]:
            return False
        found = self._status.result().applications.get(self._application)
        if found is not None and found.status == "DEPLOYING":
            return True
        # A deployment that ended since the last look has left a replica.
        return await self._any_answers()

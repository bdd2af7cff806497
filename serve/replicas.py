"""Replicas of a deployment, with fast failure if none is alive.

Ray queues a request until a replica is up, which after a crash takes as long as loading a model. So a request that
waits, or that lost its replica, pings the replicas. Proxies import this module, so it must not import torch.
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
_CRASHED = "the replica crashed and is being replaced"
_CHECK_INTERVAL_S = 0.5
"""Seconds between liveness checks of a waiting request."""
_PING_S = 5.0
"""Timeout of a ping. A replica that misses it counts as busy, not as crashed."""
_STATUS_S = 1.0
"""Timeout of a status request to Ray Serve's controller, which may have crashed too."""


class Replicas:
    """The replicas of one deployment, which need a method `ping`. Use it from one event loop."""

    def __init__(self, handle: DeploymentHandle, application: str | None = None) -> None:
        """Watch the replicas of `handle`. While `application` is being deployed, requests wait for new replicas."""
        self._handle, self._application = handle, application
        self._are_down = False
        self._pinging: asyncio.Task[None] | None = None
        self._status: asyncio.Task[ServeStatus] | None = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of one replica and return its result; raise UnavailableError if none is alive.

        If the replica crashes, another one gets the request, once: requests change nothing.
        """
        try:
            try:
                return await self.while_alive(partial(getattr(self._handle, method).remote, *arguments))
            except RayActorError:
                await self.check()
                return await self.while_alive(partial(getattr(self._handle, method).remote, *arguments))
        except (RayActorError, DeploymentUnavailableError):
            raise UnavailableError(_CRASHED) from None
        except BackPressureError:
            raise UnavailableError("too many requests are waiting") from None

    async def broadcast(self, method: str, *arguments: Any) -> int:
        """Call a method of every replica; return the number of replicas that completed it."""
        try:
            results = await self._handle.broadcast(method, *arguments).results_async(return_exceptions=True)
        except DeploymentUnavailableError:
            return 0
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, RayActorError):
                raise result
        return sum(not isinstance(result, RayActorError) for result in results)

    async def while_alive(self, start: Callable[[], Awaitable[T]]) -> T:
        """Await the work that `start` begins; cancel it with UnavailableError if no replica is alive."""
        if self._are_down:
            await self.check()
        work = asyncio.ensure_future(start())
        try:
            while not (await asyncio.wait({work}, timeout=_CHECK_INTERVAL_S))[0]:
                await self.check()
        finally:
            work.cancel()
        return work.result()

    async def check(self) -> None:
        """Raise UnavailableError if no replica is alive. Concurrent callers share one ping."""
        if self._pinging is None or self._pinging.done():
            self._pinging = asyncio.create_task(self._ping())
        await asyncio.shield(self._pinging)
        if self._are_down:
            raise UnavailableError(_CRASHED)

    async def _ping(self) -> None:
        self._are_down = not (await self._any_answers() or await self._are_being_deployed())

    async def _any_answers(self) -> bool:
        try:
            async with asyncio.timeout(_PING_S):
                return bool(await self.broadcast("ping"))
        except TimeoutError:
            return True

    async def _are_being_deployed(self) -> bool:
        if self._application is None:
            return False
        # A controller that hangs blocks one thread, not one per check.
        if self._status is None or self._status.done():
            self._status = asyncio.create_task(asyncio.to_thread(serve.status))
        if not (await asyncio.wait({self._status}, timeout=_STATUS_S))[0]:
            return False
        application = self._status.result().applications.get(self._application)
        if application is not None and application.status == "DEPLOYING":
            return True
        # If a deployment has just finished, it has a replica.
        return await self._any_answers()

"""Requests to an ASGI application in this process, with bodies that arrive in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
from starlette.types import ASGIApp


async def request(
    app: ASGIApp,
    *parts: bytes,
    wait: float = 0,
    path: str = "/search",
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> httpx2.Response:
    """Send the parts of a body, each after `wait` seconds."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            await asyncio.sleep(wait)
            yield part

    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        return await client.request(method, path, content=body(), headers=headers)

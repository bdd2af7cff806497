"""Headers that every answer has: nobody may frame the pages, guess a file's type, or learn queries from an address."""

from __future__ import annotations

from diffretriever.serving.guard import App, Message, Receive, Scope, Send

HEADERS = {
    # The rest of the policy stands in the pages themselves, where this directive would have no effect.
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}
_RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class SafeHeaders:
    """ASGI middleware that adds `HEADERS`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_RAW]
            await send(message)

        await self._app(scope, receive, with_headers)

"""The address of `python -m serve`, taken before anything else starts, and what is answered there until Ray does."""

from __future__ import annotations

import errno
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import Receive, Scope, Send

from diffretriever.serve import front
from diffretriever.serving.guard import SafeHeaders
from diffretriever.serving.problems import UnavailableError

ENVIRONMENT = {
    **front.ENVIRONMENT,
    "SERVE_SOCKET_REUSE_PORT_ENABLED": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
"""Of Ray's processes, those that every Ray of this application needs included.

Its proxies can then take the port while it is held here. A replica has one event loop: what takes long has threads of
its own, and each request goes through one thread less.
"""


class Starting:
    """Holds an address and answers every request there with a problem of status 503, until it is left.

    Ray's proxies share their ports (SO_REUSEPORT): of two servers, each would get every second request, unless the
    second one is refused here.
    """

    def __init__(self, host: str, port: int) -> None:
        """Take the address.

        Raises:
            ValueError: somebody else has it, or nobody can.
        """
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Connections that a server has left behind do not keep the next one from starting.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ValueError(_sentence(host, port, error)) from error
        # Only now: with it from the start, the address of another server that shares its own could be had.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        config = uvicorn.Config(SafeHeaders(_refuse), lifespan="off", ws="none", log_config=None, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Give the address back."""
        self._socket.close()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await UnavailableError("the server is starting").response(scope["path"])(scope, receive, send)


def _sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: end the server that has it, or give another, such as port={port + 1}"
    if isinstance(error, socket.gaierror):
        return f"host={host} is no address: give one of this machine's, or 0.0.0.0 for all of them"
    return f"{host}:{port} cannot be had ({error.strerror}): give another host or port"

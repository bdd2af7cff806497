"""The address of `python -m serve`, taken before anything else starts, and what is answered there until Ray does."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def starting(host: str, port: int) -> Iterator[None]:
    """Take an address, and answer every request there with status 503 until the block ends.

    Ray's proxies share their ports (SO_REUSEPORT): of two servers, each would get every second request, unless the
    second one is rejected here.

    Raises:
        ValueError: another server has the address, or it is not one of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        # Connections that a server has left behind do not keep the next one from starting.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            raise ValueError(_sentence(host, port, error)) from error
        # After `bind`: with it from the start, the socket could share the address of another server.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        config = uvicorn.Config(SafeHeaders(_refuse), lifespan="off", ws="none", log_config=None, log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await UnavailableError("the server is starting").response(scope["path"])(scope, receive, send)


def _sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: end the server that has it, or give another, such as port={port + 1}"
    if isinstance(error, socket.gaierror):
        return f"host={host} is no address: give one of this machine's, or 0.0.0.0 for all of them"
    return f"{host}:{port} cannot be had ({error.strerror}): give another host or port"

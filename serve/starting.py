"""Reserve the address of `python -m serve` and answer there until Ray does."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import Receive, Scope, Send

from diffretriever.serve import front
from diffretriever.serving.guard import SecurityHeaders
from diffretriever.serving.problems import UnavailableError

ENVIRONMENT = {
    **front.ENVIRONMENT,
    "SERVE_SOCKET_REUSE_PORT_ENABLED": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
"""Environment variables of Ray's processes.

Ray's proxies can share the port while it is reserved here. A replica has a single event loop: long work runs in
threads of its own, which saves each request a thread switch.
"""


@contextmanager
def starting(host: str, port: int) -> Iterator[None]:
    """Reserve an address, and answer every request there with status 503 until the block ends.

    Ray's proxies share ports (SO_REUSEPORT), so that a second server would get half of the requests. It is rejected
    here instead.

    Raises:
        ValueError: another server has the address, or it is not an address of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        # Old connections of an ended server must not block a restart.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            raise ValueError(_message(host, port, error)) from error
        # Set after `bind`, which would otherwise share another server's address.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        config = uvicorn.Config(
            SecurityHeaders(_reject), lifespan="off", ws="none", log_config=None, log_level="critical"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()


async def _reject(scope: Scope, receive: Receive, send: Send) -> None:
    await UnavailableError("the server is starting").response(scope["path"])(scope, receive, send)


def _message(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop the server that uses it, or set another, such as port={port + 1}"
    if isinstance(error, socket.gaierror):
        return f"host={host} is not an address: set one of this machine's, or 0.0.0.0 for all of them"
    return f"{host}:{port} cannot be used ({error.strerror}): set another host or port"

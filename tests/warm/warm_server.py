"""A Python that has its heavy libraries loaded already: each program it is asked to run begins in a fork of it.

Importing torch and transformers takes longer than what most processes of the tests do. The server imports them once,
and nothing of this project or of Ray. `warm_client.py` stands in for the interpreter: it hands over its arguments,
environment, streams and mount namespace, and ends as the program ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import runpy
import selectors
import signal
import site
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

PRELOADED = (
    "deepspeed.runtime.engine",
    "fastapi",
    "ir_measures",
    "jsonschema",
    "lance",
    "matplotlib.pyplot",
    "numba",
    "pandas",
    "peft",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.feather",
    "pydantic_settings",
    "requests",
    "scipy.stats",
    "torch",
    # DeepSpeed wants it once there is an optimizer.
    "torch._inductor.compile_fx",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
)
_MOST_BYTES = 1 << 20


def serve(address: str) -> dict[str, Any] | None:
    """Fork for every request; return the request in the fork, and None in the server once its parent is gone."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    print("ready", flush=True)
    # No epoll: forks would share its state.
    waiting = selectors.PollSelector()
    waiting.register(listening, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    clients: dict[int, socket.socket] = {}
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                return None
            if key.fileobj is not listening:
                _end(key.data, clients, waiting)
                continue
            client, _ = listening.accept()
            request = _received(client)
            if request is None:
                client.close()
                continue
            child = os.fork()
            if child == 0:
                for own in (listening, client, *clients.values()):
                    own.close()
                return request
            for handed in (*request["streams"], request["namespace"]):
                os.close(handed)
            clients[child] = client
            waiting.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            waiting.register(client, selectors.EVENT_READ, child)
            _tell(client, child)


def _received(client: socket.socket) -> dict[str, Any] | None:
    """Return what a client asks for; None if it ended before it had said so."""
    data, handed, _, _ = socket.recv_fds(client, _MOST_BYTES, 4)
    while not data.endswith(b"\n"):
        more = client.recv(_MOST_BYTES)
        if not more:
            return None
        data += more
    return {**json.loads(data), "streams": handed[:3], "namespace": handed[3]}


def _end(child: int, clients: dict[int, socket.socket], waiting: selectors.BaseSelector) -> None:
    """Tell a client how its program ended, or end the program of a client that is gone."""
    if child not in clients:
        return
    ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    client = clients.pop(child)
    _tell(client, status)
    for key in [key for key in waiting.get_map().values() if key.data == child]:
        waiting.unregister(key.fileobj)
        if key.fileobj is not client:
            os.close(key.fd)
    client.close()


def _tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # The client may have ended first.
        client.sendall(number.to_bytes(4, "little"))


def run(request: dict[str, Any]) -> None:
    """Run the program as the interpreter would."""
    # Ray ends a worker with all of its process group: that must not be the tests'.
    os.setpgid(0, 0)
    _enter(request["namespace"])
    for number, stream in enumerate(request["streams"]):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    kind, arguments = request["kind"], request["arguments"]
    sys.argv = arguments
    first = Path(arguments[0]).resolve().parent if kind == "file" else Path.cwd()
    given = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    sys.path[:] = [str(first), *(str(Path(place).absolute()) for place in given), *sys.path[1:]]
    site.execsitecustomize()
    random.seed()
    np.random.seed()
    if kind == "file":
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _enter(namespace: int) -> None:
    """Go where the client's files are; needs the rights of root if that is elsewhere."""
    if os.fstat(namespace).st_ino != Path("/proc/self/ns/mnt").stat().st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


if __name__ == "__main__":
    # What they say is not for whoever waits for this to be ready.
    with contextlib.redirect_stdout(sys.stderr):
        for name in PRELOADED:
            import_module(name)
    gc.freeze()
    asked = serve(sys.argv[1])
    if asked is not None:
        run(asked)

"""Stands in for the interpreter: runs a file, a module or a line in a fork of the server, anything else by itself."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys

# They would have to be known when an interpreter starts.
_NOT_IN_A_FORK = ("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDEVMODE")
_KINDS = {"-m": "module", "-c": "code"}
_RAY_WORKER = "default_worker.py"
_LOOK_S = 1.0


def main(server: str, python: str) -> None:
    """Run a program as `python` would, and end as it ends.

    Args:
        server: address of the server.
        python: the interpreter.
    """
    arguments = [text for text in sys.argv[1:] if text != "-u"]
    first = arguments[0] if arguments else ""
    kind = _KINDS.get(first, "file")
    program = arguments if kind == "file" else arguments[1:]
    is_option = kind == "file" and first.startswith("-")
    if not program or is_option or any(name in os.environ for name in _NOT_IN_A_FORK):
        os.execv(python, [python, *sys.argv[1:]])
    parent = os.getppid()
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(server)
    folder = os.getcwd()  # noqa: PTH109 (a module less to load)
    request = {"kind": kind, "arguments": program, "folder": folder, "environment": dict(os.environ)}
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    socket.send_fds(stream, [json.dumps(request).encode() + b"\n"], [0, 1, 2, namespace])
    os.close(namespace)
    child = _number(stream)
    # A handler alone could come just before the wait, and be heard at its end.
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    # A worker of Ray ends with its parent, for which it looks now and then; a fork has another.
    wait = _LOOK_S if program[0].endswith(_RAY_WORKER) else None
    while stream not in (ready := select.select([stream, woken], [], [], wait)[0]):
        if wait and os.getppid() != parent:
            os._exit(1)
        for byte in woken.recv(64) if woken in ready else b"":
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, byte)
    status = _number(stream)
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))


def _number(stream: socket.socket) -> int:
    """Return the next of two numbers that the server sends: the child, and how it ended."""
    data = stream.recv(4, socket.MSG_WAITALL)
    if len(data) < 4:
        os._exit(1)  # The server is gone.
    return int.from_bytes(data, "little")

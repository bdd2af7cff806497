"""Free ports for servers of tests, and the status at a URL."""

from __future__ import annotations

import secrets
import socket

import httpx2

# The kernel assigns the ports above, and Ray those below: another process could take them before a slow server binds.
_FROM, _UNTIL = 20_000, 32_768


def free_port() -> int:
    """Return a port that is free on all addresses and outside the ranges of automatic assignment."""
    while True:
        port = _FROM + secrets.randbelow(_UNTIL - _FROM)
        with socket.socket() as probe:
            if _bound(probe, port):
                return port


def status_at(url: str) -> int | None:
    """Return the HTTP status at a URL of this machine, or None without a server."""
    try:
        # Loading certificates takes time, and there is no TLS.
        return httpx2.get(url, timeout=None, verify=False).status_code
    except httpx2.TransportError:
        return None


def _bound(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("", port))
    except OSError:
        return False
    return True

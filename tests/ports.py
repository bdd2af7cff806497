"""Ports for servers that a test starts a moment later, and whether they answer."""

from __future__ import annotations

import secrets
import socket

import httpx2

# The kernel gives the ports above, and Ray its workers those below, to whoever asks: one that a test had found free and
# let go would be another's by the time that a slow server binds it.
_FROM, _UNTIL = 20_000, 32_768


def free_port() -> int:
    """Return a port that nobody has, on any address, and that nobody is given who asks for just any."""
    while True:
        port = _FROM + secrets.randbelow(_UNTIL - _FROM)
        with socket.socket() as probe:
            if _bound(probe, port):
                return port


def status_at(url: str) -> int | None:
    """Return the status that a server on this machine answers with; None where nobody does."""
    try:
        # Certificates are of no use without TLS, and would be loaded for every call.
        return httpx2.get(url, timeout=None, verify=False).status_code
    except httpx2.TransportError:
        return None


def _bound(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("", port))
    except OSError:
        return False
    return True

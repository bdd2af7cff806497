"""A proxy in front of an S3 endpoint that answers wrongly, slowly or not at all when a test says so.

Faults are counted, never drawn by chance: runs that send the same requests meet the same faults.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}
_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}
_CONDITIONS = {"if-match", "if-none-match"}


@dataclass
class Fault:
    """What happens to requests that match `method` and `path`: to each of them, unless counts say otherwise."""

    status: int | None = None
    """Answered in place of what S3 says."""
    carried_out: bool = False
    """Whether S3 does what was asked before `status` is answered, as where its own answer is lost."""
    seconds: float = 0.0
    """Waited before anything else."""
    call: Callable[[], object] | None = None
    """Called before the request is passed on."""
    method: str = ""
    path: str = ""
    """A regular expression, to be found anywhere in path and query."""
    after: int = 0
    """Matching requests that are let through first."""
    every: int = 1
    """Of those that follow, each of this number, beginning with the first."""
    times: int | None = None
    """How often at the most."""
    seen: int = 0
    """Matching requests so far."""
    met: int = 0
    """Those to which it happened."""

    def meets(self, method: str, path: str) -> bool:
        """Count a request, and say whether the fault happens to it."""
        if self.method not in ("", method) or not re.search(self.path, path):
            return False
        number = self.seen - self.after
        self.seen += 1
        if number < 0 or number % self.every or self.met == self.times:
            return False
        self.met += 1
        return True


class FaultProxy:
    """Forwards everything to an S3 endpoint on this machine; faults are put in by `during`."""

    def __init__(self, port: int) -> None:
        """Listen on a free port; `port` is the endpoint's."""
        self.port = port
        self.requests: Counter[str] = Counter()
        """Number of requests by method."""
        # S3 decides conditional writes one by one; the endpoint looks first and writes then.
        self.one_condition = threading.Lock()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def during(self, *faults: Fault) -> Iterator[None]:
        """Let faults happen in the block."""
        with self._lock:
            self._faults += faults
        try:
            yield
        finally:
            with self._lock:
                self._faults = [fault for fault in self._faults if not any(fault is one for one in faults)]

    def met_by(self, method: str, path: str) -> list[Fault]:
        """Count a request and return the faults that happen to it."""
        with self._lock:
            self.requests[method] += 1
            return [fault for fault in self._faults if fault.meets(method, path)]

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed leave broken connections: nobody needs to hear of them."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _handle(self) -> None:
        body = self._body()
        faults = self.server.proxy.met_by(self.command, self.path)
        for fault in faults:
            time.sleep(fault.seconds)
            if fault.call is not None:
                fault.call()
        failing = next((fault for fault in faults if fault.status is not None), None)
        if failing is None or failing.carried_out:
            status, headers, data = self._forwarded(body)
        if failing is not None:
            assert failing.status is not None
            text = f"<Error><Code>{_CODES[failing.status]}</Code><Message>a fault of the test</Message></Error>"
            status, headers, data = failing.status, [("Content-Type", "application/xml")], text.encode()
        self._answer(status, headers, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        if self.command not in ("PUT", "POST") or not _CONDITIONS & {name.lower() for name in headers}:
            return self._asked(body, headers)
        with self.server.proxy.one_condition:
            return self._asked(body, headers)

    def _asked(self, body: bytes, headers: dict[str, str]) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.proxy.port)
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        # Of an answer to HEAD, the length is that of what is not sent.
        length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        for name, value in headers:
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

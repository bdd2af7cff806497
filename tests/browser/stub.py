"""The pages' files and recorded answers of the search application, over HTTP and without the application."""

from __future__ import annotations

import json
import mimetypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from diffretriever.schemas.serve import Problem, SearchRequest, SearchResponse

STATIC = Path(__file__).resolve().parents[2] / "serve" / "static"
RECORDED = json.loads((Path(__file__).parent / "almanac.json").read_text("utf-8"))
TIDES = "why do the tides come later every day"
BEES = "keeping bees warm"


def recorded(query: str, mode: str = "hybrid", budget: object = "adaptive") -> SearchResponse:
    asked = {"query": query, "mode": mode, "budget": budget, "collection": None}
    found = next(each["answer"] for each in RECORDED["searches"] if each["asked"] == asked)
    return SearchResponse.model_validate(found)


def titles(answer: SearchResponse) -> list[str]:
    return [hit.title for hit in answer.results[0].hits]


def problem(status: int, title: str, detail: str, fix: str, field: str | None = None) -> Problem:
    named = {"title": title, "detail": detail, "fix": fix, "field": field}
    return Problem(type="urn:diffretriever:problem:x", status=status, instance="/", **named)


def answer(request: SearchRequest) -> dict[str, Any] | Problem:
    """Return the recorded answer; to words that were not recorded, one that the word stands for."""
    query = str(request.query)
    asked = {"query": query, "mode": request.mode, "budget": request.budget, "collection": request.filter}
    found = [each["answer"] for each in RECORDED["searches"] if each["asked"] == asked]
    if found:
        return deepcopy(found[0])
    if query in _PROBLEMS:
        return _PROBLEMS[query]
    given = deepcopy(RECORDED["searches"][0]["answer"])
    given["mode"] = request.mode
    given["results"][0]["query"] = query
    _CHANGES.get(query, lambda result: None)(given["results"][0])
    return given


def _hostile(result: dict[str, Any]) -> None:
    for hit in result["hits"]:
        hit["title"] = hit["text"] = "<img src=x onerror=\"document.title='broken'\"><script>alert(1)</script> tides"


def _plain(result: dict[str, Any]) -> None:
    result["budget"] = {"slots": None, "reason": "retriever"}
    for slot in result["hits"][0]["explanation"]["slots"]:
        slot["words"] = slot["passage_words"] = []


def _dated(result: dict[str, Any]) -> None:
    result["hits"][0]["metadata"] = {"year": 2020, "lang": None, "free": False}


_CHANGES = {
    "dated": _dated,
    "hostile": _hostile,
    "plain": _plain,
}
_PROBLEMS = {
    "long": problem(422, "The request is not valid", "9 characters are too many", "ask in at most 4", "query"),
}


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/index":
            return self._json(self.server.index)
        name = {"/": "index.html", "/compare": "compare.html"}.get(path, path.removeprefix("/static/"))
        file = (STATIC / name).resolve()
        if not file.is_relative_to(STATIC) or not file.is_file():
            return self._send(404, "text/plain", b"")
        return self._send(200, mimetypes.guess_type(file.name)[0] or "text/plain", file.read_bytes())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = SearchRequest.model_validate_json(body)
        self.server.asked.append(request)
        if self.server.key and self.headers["authorization"] != f"Bearer {self.server.key}":
            return self._json(problem(401, "An API key is needed", "There is none", "send one"))
        if "slow" in str(request.query):
            time.sleep(0.6)
        return self._json(answer(request))

    def _json(self, value: dict[str, Any] | Problem) -> None:
        if isinstance(value, Problem):
            return self._send(value.status, "application/problem+json", value.model_dump_json().encode())
        return self._send(200, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-content-type-options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


class Stub(ThreadingHTTPServer):
    """Attributes: what was asked, which key is wanted, what `GET /index` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[SearchRequest] = []
        self.key: str | None = None
        self.index: dict[str, Any] = RECORDED["index"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nothing to write about."""


@contextmanager
def serving() -> Iterator[Stub]:
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield stub
        stub.shutdown()
        thread.join()

"""Whatever comes back, the client returns a typed answer or raises one of its own errors."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diffretriever.client import ClientError, Retries
from diffretriever.schemas.serve import DeleteResponse, IngestResponse, SearchResponse
from tests.client.service import DELETED, FOUND, PASSAGE, REFUSED, awaited, blocking

CALLS: dict[str, tuple[tuple[Any, ...], type]] = {
    "search": (("heat",), SearchResponse),
    "add_passages": (([PASSAGE],), IngestResponse),
    "delete_passage": (("p1",), DeleteResponse),
}
ONCE = Retries(attempts=1)
_leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_json = st.recursive(_leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))


def _spoilt(value: Any, path: list[int], by: Any) -> Any:
    """Return `value` with the part that `path` leads to replaced."""
    if not path or not value or not isinstance(value, dict | list):
        return by
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _spoilt(value[key], path[1:], by)
    return copy


_answers = [json.loads(each.model_dump_json()) for each in (FOUND, DELETED, REFUSED)]
_nearly = st.builds(_spoilt, st.sampled_from(_answers), st.lists(st.integers(0, 9), max_size=6), _json)
_bodies = (_nearly | _json).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)
_header = st.sampled_from(
    [
        ("retry-after", "\x00"),
        ("retry-after", "Mon, 01 Jan 0001 00:00:00 +9959"),
        ("content-type", "application/json; charset=klingon"),
        ("content-encoding", "gzip"),
        ("content-encoding", "br, deflate"),
        ("location", "http://[broken"),
        ("location", "//"),
        ("set-cookie", "=;;\x01"),
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(list(CALLS)), st.integers(200, 599), _bodies, st.lists(_header, max_size=2))
@example("search", 200, b"[" * 5000, [])
@example("search", 302, b"", [("location", "http://[broken")])
@example("search", 200, b"x", [("content-encoding", "gzip")])
@example("search", 200, b'{"index": 1e999}', [])
def test_nothing_but_own_errors(call: str, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
    args, kind = CALLS[call]

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))

    for ask in (blocking, awaited):
        try:
            found = ask(answer, call, *args, retries=ONCE)
        except ClientError as error:
            assert str(error)  # noqa: PT017
        else:
            assert isinstance(found, kind)
            assert 200 <= status < 300

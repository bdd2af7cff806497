"""Whatever comes back, the client returns a typed answer or raises one of its own errors."""

from __future__ import annotations

import json

import httpx2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diffretriever.client import ClientError, Retries
from diffretriever.schemas.serve import SearchResponse
from tests.client.service import awaited, blocking

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)
_bodies = _json.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)
_header = st.sampled_from(
    [
        ("retry-after", "\x00"),
        ("content-encoding", "gzip"),
        ("location", "http://[broken"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.integers(200, 599), _bodies, st.lists(_header, max_size=2))
@example(200, b"[" * 5000, [])
@example(302, b"", [("location", "http://[broken")])
@example(200, b"x", [("content-encoding", "gzip")])
@example(200, b'{"index": 1e999}', [])
def test_nothing_but_own_errors(status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))

    for ask in (blocking, awaited):
        try:
            found = ask(answer, "search", "heat", retries=Retries(attempts=1))
        except ClientError as error:
            assert str(error)  # noqa: PT017
        else:
            assert isinstance(found, SearchResponse)
            assert 200 <= status < 300

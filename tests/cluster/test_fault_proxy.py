"""The fault proxy: requests go through unless a fault meets them, and faults are counted."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from tests.cluster.fault_proxy import Fault
from tests.cluster.s3 import BUCKET, S3

# The endpoint believes any signature.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, Signature=0"}


def ask(s3: S3, method: str, key: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Send one request through the proxy."""
    connection = http.client.HTTPConnection(urlsplit(s3.proxy.url).netloc)
    try:
        connection.request(method, f"/{BUCKET}/{key}", body, {**SIGNED, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def statuses(s3: S3, method: str, key: str, count: int) -> list[int]:
    return [ask(s3, method, key, b"x")[0] for _ in range(count)]


def test_requests_are_passed_on(s3: S3) -> None:
    before = s3.proxy.requests["PUT"]
    assert ask(s3, "PUT", "plain", b"some bytes") == (200, b"")
    assert ask(s3, "GET", "plain") == (200, b"some bytes")
    assert ask(s3, "HEAD", "plain") == (200, b"")
    assert ask(s3, "GET", "missing")[0] == 404
    assert s3.proxy.requests["PUT"] == before + 1


def test_one_of_two_conditional_writes_succeeds(s3: S3) -> None:
    assert ask(s3, "PUT", "lock", b"mine", **{"If-None-Match": "*"})[0] == 200
    assert ask(s3, "PUT", "lock", b"yours", **{"If-None-Match": "*"})[0] == 412
    assert ask(s3, "GET", "lock") == (200, b"mine")


def test_faults_are_counted(s3: S3) -> None:
    with s3.proxy.during(Fault(status=503, path="a", times=2)):
        assert statuses(s3, "PUT", "a", 3) == [503, 503, 200]
    third = Fault(status=500, method="PUT", path="b", after=1, every=3)
    with s3.proxy.during(third):
        assert statuses(s3, "PUT", "b", 6) == [200, 500, 200, 200, 500, 200]
        assert statuses(s3, "GET", "b", 2) == [200, 200]
    assert (third.seen, third.met) == (6, 2)
    with s3.proxy.during(Fault(status=403, path="c")):
        status, text = ask(s3, "PUT", "c")
        assert (status, b"AccessDenied" in text) == (403, True)
    assert ask(s3, "GET", "c")[0] == 404, "nothing of it reached S3"


def test_an_answer_can_be_lost_or_held(s3: S3) -> None:
    with s3.proxy.during(Fault(status=500, carried_out=True, path="d", times=1)):
        assert ask(s3, "PUT", "d", b"done all the same")[0] == 500
    assert ask(s3, "GET", "d") == (200, b"done all the same")
    calls: list[int] = []
    with s3.proxy.during(Fault(path="d", after=1, times=1, call=lambda: calls.append(1), seconds=0.001)):
        assert statuses(s3, "GET", "d", 3) == [200, 200, 200]
    assert calls == [1]

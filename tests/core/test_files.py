"""Reading and writing at places: a folder, an object store in memory, and S3."""

from __future__ import annotations

import gzip
import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pydantic import ValidationError

from diffretriever.core.files import (
    exists,
    file_state,
    files_in,
    is_file,
    is_folder,
    is_local,
    open_input,
    read_bytes,
    read_text,
    remove,
    whole_file,
    write_bytes,
    write_text,
)
from diffretriever.schemas.base import Model
from diffretriever.schemas.locations import Location, StorePath, parse_location
from tests.cluster.s3 import S3


@pytest.fixture(params=["path", "file URI", "memory", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/a b/folder"
    if request.param == "memory":
        return f"fsspec+memory://bucket/{uuid.uuid4().hex}"
    place = tmp_path / "a b%20c"
    return str(place) if request.param == "path" else place.as_uri()


def test_a_written_file_is_read(folder: str) -> None:
    place = parse_location(folder)
    assert not exists(place)
    assert files_in(place) == []
    write_text(place / "deep" / "one.txt", "ü\n")
    write_bytes(f"{folder}/two", b"")
    assert (exists(place), is_folder(place), is_file(place)) == (True, True, False)
    assert read_text(f"{folder}/deep/one.txt") == "ü\n"
    assert read_bytes(place / "two") == b""
    assert is_file(place / "two")
    assert [info.base_name for info in files_in(place)] == ["two"]
    state = file_state(place / "two")
    write_bytes(place / "two", b"2")
    assert file_state(place / "two") != state
    remove(place / "two")
    remove(place / "never there")
    assert not exists(place / "two")
    remove(place)
    assert not exists(place / "deep" / "one.txt")


def test_a_missing_file_is_named(folder: str) -> None:
    for look in (read_bytes, file_state):
        with pytest.raises(FileNotFoundError) as told:
            look(parse_location(folder) / "none")
        assert str(told.value.filename).endswith("/none")


def test_a_file_is_read_by_lines_and_sought_in(folder: str) -> None:
    place = parse_location(folder) / "lines.gz"
    lines = [b"%d\n" % number for number in range(1000)]
    with whole_file(place) as sink, gzip.open(sink, "wb") as packed:
        packed.writelines(lines)
    with open_input(place) as stream, gzip.open(stream) as unpacked:
        assert list(unpacked) == lines
    write_bytes(place, b"".join(lines))
    with open_input(place) as stream:
        stream.seek(10)
        assert stream.readline() == b"5\n"
        assert stream.tell() == 12


def test_an_object_is_read_by_few_requests(bucket: str, s3: S3) -> None:
    write_bytes(f"{bucket}/one", b"new" * 1_000_000)
    before = s3.proxy.requests["GET"]
    assert len(read_bytes(f"{bucket}/one")) == 3_000_000
    with open_input(f"{bucket}/one") as stream:
        assert stream.read(4) == b"newn"
        assert len(stream.read()) == 2_999_996
    assert s3.proxy.requests["GET"] - before <= 4


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_killed_write_leaves_the_old_file(
    before: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal that leaves no time to clean up."""
    file = tmp_path / "one"
    if before is not None:
        file.write_bytes(before)
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt), whole_file(file) as sink:
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        sink.write(b"half")
        raise KeyboardInterrupt
    assert (file.read_bytes() if file.exists() else None) == before
    write_bytes(file, b"new")
    assert file.read_bytes() == b"new"


def test_a_failed_write_leaves_the_old_file(folder: str) -> None:
    place = parse_location(folder) / "one"
    write_bytes(place, b"old")

    def fail() -> None:
        with whole_file(place) as sink:
            sink.write(b"half" * 10_000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert read_bytes(place) == b"old"
    assert [info.base_name for info in files_in(folder)] == ["one"]
    with whole_file(place) as sink:
        sink.write(b"new" * 5_000_000)
    assert read_bytes(place) == b"new" * 5_000_000


def test_store_paths_join_like_paths() -> None:
    place = StorePath("s3://bucket/folder/")
    assert str(place / "a.jsonl.gz") == "s3://bucket/folder/a.jsonl.gz"
    assert (place / "a.jsonl.gz").suffix == ".gz"
    assert (place / "a").with_name("b") == place / "b"
    assert place.parent == StorePath("s3://bucket") == place.parent.parent
    assert (place.name, place.parent.name) == ("folder", "bucket")
    assert pickle.loads(pickle.dumps(place)) == place
    assert parse_location("s3://bucket/folder") == place
    assert parse_location("file:///folder") == Path("/folder") == parse_location(Path("/folder"))
    for wrong in ("s3://", "s3:///folder", "://x", "s3://bucket/a?b", "s3://bucket/#"):
        with pytest.raises(ValueError, match=r"has no bucket|write . as %3F"):
            StorePath(wrong)


class _Job(Model):
    location: Location | None = None


def test_paths_and_uris_in_a_config() -> None:
    assert _Job(location="s3://bucket/x").location == StorePath("s3://bucket/x")
    assert _Job(location="file:///x").location == Path("/x") == _Job(location=Path("/x")).location
    for given in ("s3://bucket/x", "/x"):
        assert _Job.model_validate_json(_Job(location=given).model_dump_json()) == _Job(location=given)
    with pytest.raises(ValidationError, match="has no bucket"):
        _Job(location="s3://")


@pytest.fixture
def refusing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store that refuses everybody everything."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_POST = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield bucket
        server.shutdown()


def test_refused_access_says_what_to_check(refusing: str) -> None:
    place = parse_location(refusing) / "x"
    for attempt in (read_bytes, exists, files_in, file_state, remove, lambda place: write_bytes(place, b"")):
        with pytest.raises(ValueError, match=rf"^{place}: access is refused: check the credentials"):
            attempt(place)


def test_lance_and_pyarrow_see_the_same_store(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its names the endpoint has."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        with monkeypatch.context() as patch:
            patch.setenv(name, endpoint)
            lance.write_dataset(pa.table({"a": [1]}), f"{bucket}/{name}.lance")
            assert is_folder(f"{bucket}/{name}.lance/data")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(ValueError, match="set AWS_ALLOW_HTTP=true"):
        write_bytes(f"{bucket}/x", b"")


def test_a_missing_bucket_or_store_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^s3://nobody-s/x: there is no such bucket"):
        write_bytes("s3://nobody-s/x", b"")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match="nothing answers there: check AWS_ENDPOINT_URL"):
        read_bytes(f"{bucket}/x")
    with pytest.raises(ValueError, match="object stores of this kind are not known"):
        read_bytes("nonsense://bucket/x")
    assert not is_local("nonsense://bucket/x")

"""One writer at a time on an object store."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from diffretriever.core.files import files_in, read_text, write_text
from diffretriever.index import lease
from diffretriever.index.writer import WriterLock

OTHER = r"another job \(process 7 on node-7 since 2026-01-01T00:00:00\+00:00\) is writing to s3://.*: wait for it"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_RENEW_SECONDS", 0.2)
    monkeypatch.setattr(lease, "_RETRY_SECONDS", 0.2)


def flags(uri: str) -> list[str]:
    return [info.base_name for info in files_in(f"{uri}/.writer.lease")]


def raise_flag(uri: str) -> None:
    about = {"host": "node-7", "process": 7, "since": "2026-01-01T00:00:00+00:00"}
    write_text(f"{uri}/.writer.lease/theirs", json.dumps(about))


def test_a_second_writer_is_rejected_with_the_name_of_the_first(bucket: str) -> None:
    with WriterLock(bucket):
        (name,) = flags(bucket)
        about = json.loads(read_text(f"{bucket}/.writer.lease/{name}"))
        assert about["process"] == os.getpid()
        # The patient one waits until the flag is renewed.
        for patient in (True, False):
            with (
                pytest.raises(ValueError, match=rf"process {os.getpid()} on {about['host']} since 20.*is writing to"),
                WriterLock(bucket, patient=patient),
            ):
                pass
        assert flags(bucket) == [name]
        with WriterLock(f"{bucket}/other"):
            pass
    assert flags(bucket) == []
    with WriterLock(bucket):
        pass


def test_a_flag_that_is_not_renewed_expires(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_flag(bucket)
    with pytest.raises(ValueError, match=OTHER), WriterLock(bucket, patient=False):
        pass
    monkeypatch.setattr(lease, "_EXPIRE_SECONDS", 2.0)
    with WriterLock(bucket):
        assert "theirs" not in flags(bucket)
    assert (
        "(process 7 on node-7 since 2026-01-01T00:00:00+00:00): checking whether it is still running"
        in capsys.readouterr().err
    )


def test_a_patient_writer_waits_for_the_release(bucket: str) -> None:
    first = WriterLock(bucket)
    first.__enter__()
    timer = threading.Timer(0.1, first.__exit__, (None, None, None))
    timer.start()
    with WriterLock(bucket):
        assert len(flags(bucket)) == 1
    timer.join()


def test_two_writers_never_hold_the_lease_at_once(bucket: str) -> None:
    """Impatient writers come again and again; while one has the lease, no other gets it."""
    holders: list[int] = []

    def write(number: int) -> list[int]:
        counts: list[int] = []
        while len(counts) < 3:
            try:
                with WriterLock(bucket, patient=False):
                    holders.append(number)
                    counts.append(len(holders))
                    time.sleep(0.02)
                    holders.remove(number)
            except ValueError:
                time.sleep(0.01 * (number + 1))
        return counts

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(write, range(3))) == [[1] * 3] * 3


def test_a_store_without_access_is_reported(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="there is no such bucket"), WriterLock("s3://nobody-s/index"):
        pass
    with WriterLock(bucket):
        with monkeypatch.context() as patch:
            patch.setattr(lease, "write_text", _refuse)
            time.sleep(0.5)
        assert len(flags(bucket)) == 1


def _refuse(*_: object) -> None:
    raise ValueError("access is refused")

"""A lease on an object store: one writer at a time, without conditional requests.

A writer puts its own object, its flag, into the folder `.writer.lease`, and then lists the flags of others. A store
lists an object as soon as it is put, so at least one of two writers sees the other and steps back. A running writer
renews its flag; the flag of a killed one expires. Ages are differences of the store's timestamps, so clocks need not
agree. Commits are safe without the lease; see `index.writer.Committer`.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime

from diffretriever.core.files import files_in, read_bytes, remove, write_text
from diffretriever.schemas.locations import StorePath

_FOLDER = ".writer.lease"
_RENEW_SECONDS = 5.0
_EXPIRE_SECONDS = 30.0
_RETRY_SECONDS = 1.0


class Lease:
    """The lease of a URI on an object store, from `acquire` to `release`."""

    def __init__(self, location: StorePath) -> None:
        self._location = location
        self._flag = location
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._about = {"host": socket.gethostname(), "process": os.getpid(), "since": since}
        self._ended = threading.Event()
        self._renewal: threading.Thread | None = None

    def acquire(self, *, patient: bool) -> None:
        """Take the lease; raise ValueError that names the other writer.

        A patient writer waits until the other flag is removed, renewed, or expires after 30 seconds. Otherwise any flag
        counts as that of a running writer.
        """
        seen: dict[str, int] = {}
        while flags := self._raise_flag():
            self._lower_flag()
            renewed = (name for name, changed in flags.items() if not patient or seen.get(name, changed) != changed)
            if (name := next(renewed, None)) is not None:
                raise ValueError(
                    f"another job ({self._owner(name)}) is writing to {self._location}: wait for it, or stop it; "
                    "the same command then resumes its work"
                )
            if not seen:
                owners = ", ".join(map(self._owner, flags))
                sys.stderr.write(f"{self._location} has a writer ({owners}): checking whether it is still running\n")
            seen |= flags
            # Random, so that two writers do not retry at the same time.
            time.sleep(_RETRY_SECONDS * (0.5 + secrets.randbelow(1000) / 1000))
        self._ended.clear()
        self._renewal = threading.Thread(target=self._renew, name=f"lease of {self._location}", daemon=True)
        self._renewal.start()

    def release(self) -> None:
        """Release the lease."""
        self._ended.set()
        if self._renewal is not None:
            self._renewal.join()
        self._lower_flag()

    def _raise_flag(self) -> dict[str, int]:
        """Put a flag; return the unexpired flags of others: name → time."""
        self._flag = self._location / _FOLDER / uuid.uuid4().hex
        self._put()
        times = {info.base_name: info.mtime_ns for info in files_in(self._location / _FOLDER)}
        put_time = times.pop(self._flag.name, None)
        if put_time is None:
            raise ValueError(f"{self._flag} was written but is not listed: check the permission to list the bucket")
        expired = [name for name, changed in times.items() if put_time - changed > _EXPIRE_SECONDS * 1e9]
        for name in expired:
            remove(self._location / _FOLDER / name)
            del times[name]
        return times

    def _put(self) -> None:
        write_text(self._flag, json.dumps(self._about) + "\n")

    def _lower_flag(self) -> None:
        # A flag that cannot be removed expires.
        with suppress(OSError, ValueError):
            remove(self._flag)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEW_SECONDS):
            # The next renewal may succeed.
            with suppress(ValueError):
                self._put()

    def _owner(self, name: str) -> str:
        try:
            about = json.loads(read_bytes(self._location / _FOLDER / name))
            return f"process {about['process']} on {about['host']} since {about['since']}"
        except (OSError, ValueError, LookupError):
            return "a process that has just ended"

"""One writer at a time on an object store, where no operating system keeps locks.

A writer raises a flag, an object of its own in the folder `.writer.lease`, and then looks for the flags of others. Of
two that come at the same time, the one that looks last sees the other's, for a store lists at once what is put: never
do both go on, though both may step back and try again. No request has to be conditional. A writer at work renews its
flag; that of one that died expires. An age is the difference of two times that the store itself gives, so that no two
clocks have to agree. What is committed does not depend on any of this; see `index.writer.Committer`.
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

from diffretriever.files import files_in, read_bytes, remove, write_text
from diffretriever.schemas.places import StorePath

_FOLDER = ".writer.lease"
_RENEW_SECONDS = 5.0
_EXPIRE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 1.0


class Lease:
    """The right to write below a place on an object store, held from `acquire` to `release`."""

    def __init__(self, place: StorePath) -> None:
        self._place = place
        self._flag = place
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._about = {"host": socket.gethostname(), "process": os.getpid(), "since": since}
        self._ended = threading.Event()
        self._renewal: threading.Thread | None = None

    def acquire(self, *, patient: bool) -> None:
        """Take the lease, or find that another has it.

        Args:
            patient: look at a flag until it is lowered, renewed or expired, as one that a killed job left is after 30
                seconds. Otherwise any flag is that of a writer at work.

        Raises:
            ValueError: another writer has it; the message says which one.
        """
        seen: dict[str, int] = {}
        while others := self._raise_flag():
            self._lower_flag()
            renewed = (name for name, changed in others.items() if not patient or seen.get(name, changed) != changed)
            if (name := next(renewed, None)) is not None:
                raise ValueError(
                    f"another job ({self._owner(name)}) is writing to {self._place}: wait for its end, or stop it; "
                    "the same command then resumes its work"
                )
            if not seen:
                owners = ", ".join(map(self._owner, others))
                sys.stderr.write(f"{self._place} was being written to ({owners}): looking whether it still is\n")
            seen |= others
            # Of two that step back at once, one has to be the first to come again.
            time.sleep(_LOOK_AGAIN_SECONDS * (0.5 + secrets.randbelow(1000) / 1000))
        self._ended.clear()
        self._renewal = threading.Thread(target=self._renew, name=f"lease of {self._place}", daemon=True)
        self._renewal.start()

    def release(self) -> None:
        """Give the lease back; others need not wait for its end."""
        self._ended.set()
        if self._renewal is not None:
            self._renewal.join()
        self._lower_flag()

    def _raise_flag(self) -> dict[str, int]:
        """Put a flag of a new name; return the flags of others that have not expired, by name, with their times."""
        self._flag = self._place / _FOLDER / uuid.uuid4().hex
        self._put()
        times = {info.base_name: info.mtime_ns for info in files_in(self._place / _FOLDER)}
        mine = times.pop(self._flag.name, None)
        if mine is None:
            raise ValueError(f"{self._flag} was put there and is not listed: nobody can tell who else writes there")
        expired = [name for name, changed in times.items() if mine - changed > _EXPIRE_SECONDS * 1e9]
        for name in expired:
            remove(self._place / _FOLDER / name)
            del times[name]
        return times

    def _put(self) -> None:
        write_text(self._flag, json.dumps(self._about) + "\n")

    def _lower_flag(self) -> None:
        # One that stays up expires.
        with suppress(OSError, ValueError):
            remove(self._flag)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEW_SECONDS):
            # It is tried again; nothing is written twice if another takes over meanwhile.
            with suppress(ValueError):
                self._put()

    def _owner(self, name: str) -> str:
        try:
            about = json.loads(read_bytes(self._place / _FOLDER / name))
            return f"process {about['process']} on {about['host']} since {about['since']}"
        except (OSError, ValueError, LookupError):
            return "one that has just ended"

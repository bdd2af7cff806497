"""Checkpoints of long jobs, from which a killed job resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diffretriever.core.files import AnyLocation, is_file, read_bytes, remove, understood, write_bytes
from diffretriever.schemas.base import differing_fields
from diffretriever.schemas.locations import plain_location

if TYPE_CHECKING:
    import pyarrow as pa

IDENTITY_FILE = "identity"
"""Entry with the identity of the ledger's job."""


class Ledger:
    """Named entries in a local or object-store folder; each is written atomically.

    A job checks for an entry before it computes a part, and writes one after it. To keep the work of different jobs
    apart, identify the inputs in the ledger's identity, the folder's name, the entry's name, or the entry.

    Threads and processes may write entries of different names concurrently.
    """

    def __init__(self, folder: AnyLocation, identity: Mapping[str, Any] | None = None) -> None:
        """Open the ledger in `folder`, a path or object-store URI, which need not exist.

        Raises:
            ValueError: The ledger has another `identity` (JSON values); the message names the fields.
        """
        self._folder = plain_location(str(folder)).rstrip("/")
        if identity is not None:
            self._claim(json.loads(json.dumps(identity)))

    def location(self, name: str) -> str:
        """Return the path or URI of an entry, which may not exist."""
        return f"{self._folder}/{name}"

    def has(self, name: str) -> bool:
        """Return whether the entry is there."""
        return is_file(self.location(name))

    def get(self, name: str) -> bytes | None:
        """Return an entry, or None if there is none."""
        try:
            return read_bytes(f"{self._folder}/{name}")
        except (FileNotFoundError, IsADirectoryError):
            return None

    def get_json(self, name: str) -> Any:
        """Return the value of `put_json`, or None if there is no such entry.

        Raises:
            ValueError: The file is not valid JSON.
        """
        data = self.get(name)
        if data is None:
            return None
        with understood(self.location(name), "remove it, and its work is done again"):
            return json.loads(data)

    def put(self, name: str, data: bytes) -> None:
        """Write or replace an entry; `data` is any buffer. Creates folders."""
        write_bytes(f"{self._folder}/{name}", data)

    def put_json(self, name: str, value: Any) -> None:
        """Write or replace an entry that `get_json` reads."""
        self.put(name, f"{json.dumps(value)}\n".encode())

    def remove(self, name: str) -> None:
        """Delete an entry, or all entries below `NAME/`, if any."""
        remove(f"{self._folder}/{name}")

    def clear(self) -> None:
        """Delete the folder, if it exists, when the job is done."""
        remove(self._folder)

    def put_table(self, name: str, table: pa.Table) -> None:
        """Put a table, compressed; the entry is an Arrow file."""
        import pyarrow as pa
        from pyarrow import feather

        sink = pa.BufferOutputStream()
        feather.write_feather(table, sink, compression="lz4")
        self.put(name, sink.getvalue())

    def get_table(self, name: str) -> pa.Table:
        """Return the table of an existing entry; raises `ValueError` if it is damaged."""
        import pyarrow as pa
        from pyarrow import feather

        data = self.get(name)
        if data is None:
            raise ValueError(f"{self.location(name)} is missing: run the same command again")
        with understood(self.location(name), "remove it, and its work is done again"):
            return feather.read_table(pa.BufferReader(data))

    def _claim(self, identity: dict[str, Any]) -> None:
        # The identity is written first: without it, the ledger has no entries of another job.
        if not self.has(IDENTITY_FILE):
            self.put_json(IDENTITY_FILE, identity)
            return
        with understood(self.location(IDENTITY_FILE), "give another --output, or remove the folder"):
            existing = {**json.loads(self.get(IDENTITY_FILE) or b"")}
        refuse_another(self._folder, "an attempt at another job", existing, identity)


def refuse_another(folder: AnyLocation, what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise `ValueError` with the differing fields if a folder contains `what`, such as "another sweep"."""
    differing = differing_fields(dict(theirs), dict(ours))
    if not differing:
        return
    listed = "\n  ".join(differing)
    raise ValueError(f"{folder} holds {what} (that one != this one):\n  {listed}\ngive another --output, or remove it")

"""Finished pieces of long jobs: a job that was killed goes on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diffretriever.core.files import AnyPlace, is_file, read_bytes, remove, understood, write_bytes
from diffretriever.schemas.base import differing_fields
from diffretriever.schemas.places import plain_place

if TYPE_CHECKING:
    import pyarrow as pa

IDENTITY_FILE = "identity"
"""Entry that says which job a ledger belongs to."""


class Ledger:
    """Entries by name in a folder, local or on an object store; each is a file that is whole or not there.

    A job puts an entry when a piece of its work is done, and looks for it before it does that piece. So that nothing is
    taken over from other work, one of these says what a piece was made from: the identity of the ledger, the name of
    the ledger's folder, the name of the entry, or the entry itself.

    Entries outlast the process that put them. Several threads or processes may put entries of different names.
    """

    def __init__(self, folder: AnyPlace, identity: Mapping[str, Any] | None = None) -> None:
        """Open the ledger in `folder`, a path or object-store URI, which need not exist.

        If `identity`, JSON values, is given and differs from that of the ledger, raise `ValueError` with the fields.
        """
        self._place = plain_place(str(folder)).rstrip("/")
        if identity is not None:
            self._claim(json.loads(json.dumps(identity)))

    def place(self, name: str) -> str:
        """Return the path or URI of an entry, which need not be there."""
        return f"{self._place}/{name}"

    def has(self, name: str) -> bool:
        """Return whether the entry is there."""
        return is_file(self.place(name))

    def get(self, name: str) -> bytes | None:
        """Return an entry, None where it is not there."""
        try:
            return read_bytes(f"{self._place}/{name}")
        except (FileNotFoundError, IsADirectoryError):
            return None

    def get_json(self, name: str) -> Any:
        """Return what `put_json` put, None where it is not there.

        Raises:
            ValueError: the file was changed by something else and is no JSON any more.
        """
        data = self.get(name)
        if data is None:
            return None
        with understood(self.place(name), "remove it, and its work is done again"):
            return json.loads(data)

    def put(self, name: str, data: bytes) -> None:
        """Write or replace an entry; folders in its name are made. Any buffer will do for `data`."""
        write_bytes(f"{self._place}/{name}", data)

    def put_json(self, name: str, value: Any) -> None:
        """Write or replace an entry that `get_json` reads."""
        self.put(name, f"{json.dumps(value)}\n".encode())

    def remove(self, name: str) -> None:
        """Delete an entry, or all entries whose names begin with `NAME/`; there may be none."""
        remove(f"{self._place}/{name}")

    def clear(self) -> None:
        """Delete the folder with all that is in it, if it is there: the job is done."""
        remove(self._place)

    def put_table(self, name: str, table: pa.Table) -> None:
        """Put a table, compressed; the entry is an Arrow file."""
        import pyarrow as pa
        from pyarrow import feather

        sink = pa.BufferOutputStream()
        feather.write_feather(table, sink, compression="lz4")
        self.put(name, sink.getvalue())

    def get_table(self, name: str) -> pa.Table:
        """Return a table that `put_table` put and that must be there; raises `ValueError` if it is damaged."""
        import pyarrow as pa
        from pyarrow import feather

        data = self.get(name)
        if data is None:
            place = self.place(name)
            raise ValueError(f"{place} was put there and cannot be read any more: give the same command again")
        with understood(self.place(name), "remove it, and its work is done again"):
            return feather.read_table(pa.BufferReader(data))

    def _claim(self, identity: dict[str, Any]) -> None:
        # It is put before any other entry: where there is none, there is nothing of another job.
        if not self.has(IDENTITY_FILE):
            self.put_json(IDENTITY_FILE, identity)
            return
        with understood(self.place(IDENTITY_FILE), "give another --output, or remove the folder"):
            found = {**json.loads(self.get(IDENTITY_FILE) or b"")}
        refuse_another(self._place, "an attempt at another job", found, identity)


def refuse_another(place: AnyPlace, what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise `ValueError` with the fields that differ if a folder contains `what`, such as "another sweep"."""
    differing = differing_fields(dict(theirs), dict(ours))
    if not differing:
        return
    listed = "\n  ".join(differing)
    raise ValueError(f"{place} holds {what} (that one != this one):\n  {listed}\ngive another --output, or remove it")

"""Small files that a long job leaves for its next attempt, in a folder of the index, local or on an object store."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from diffretriever.files import is_local, write_bytes
from schemas.places import plain_place


class WorkFolder:
    """Files by name; each is written whole or not at all."""

    def __init__(self, place: str) -> None:
        """`place` need not be there."""
        self._place = place = plain_place(place)
        self._files, self._path = fs.FileSystem.from_uri(str(Path(place).absolute()) if is_local(place) else place)

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file."""
        write_bytes(f"{self._place}/{name}", data)

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None where it is not there."""
        if not self.has(name):
            return None
        with self._files.open_input_stream(f"{self._path}/{name}") as stream:
            return bytes(stream.read())

    def has(self, name: str) -> bool:
        """Return whether the file is there."""
        return bool(self._files.get_file_info(f"{self._path}/{name}").type == fs.FileType.File)

    def remove(self) -> None:
        """Delete the folder with all that is in it, if it is there."""
        if self._files.get_file_info(self._path).type == fs.FileType.Directory:
            self._files.delete_dir(self._path)

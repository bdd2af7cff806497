"""Columns of memory-mapped Arrow files, read a row at a time without Arrow's cost for a value."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def open_batches(path: Path) -> list[pa.RecordBatch]:
    """Map an Arrow IPC file and return its batches, none of them empty.

    Raises:
        ValueError: it is no such file, or a damaged one.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except pa.ArrowException as error:
        raise ValueError(f"{path}: damaged ({error}): remove its folder and prepare the training set again") from error


class Rows:
    """Where each row of a file is: in which batch, and where in that."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._starts = [0]
        for batch in batches:
            self._starts.append(self._starts[-1] + len(batch))

    def __len__(self) -> int:
        return self._starts[-1]

    def find(self, row: int) -> tuple[int, int]:
        """Return batch and place of a row; raises `IndexError` for one that is not there."""
        if not 0 <= row < self._starts[-1]:
            raise IndexError(f"row {row} of {self._starts[-1]}")
        batch = bisect_right(self._starts, row) - 1
        return batch, row - self._starts[batch]


class TextColumn:
    """A column of large strings without nulls."""

    def __init__(self, batches: Sequence[pa.RecordBatch], name: str) -> None:
        self._offsets, self._bytes = [], []
        for batch in batches:
            _, offsets, data = batch.column(name).buffers()
            self._offsets.append(np.frombuffer(offsets, np.int64, len(batch) + 1))
            self._bytes.append(memoryview(data if data is not None else b""))

    def __getitem__(self, place: tuple[int, int]) -> str:
        batch, row = place
        start, end = self._offsets[batch][row : row + 2]
        return str(self._bytes[batch][start:end], "utf-8")


class ListColumn:
    """A column of lists of numbers without nulls."""

    def __init__(self, batches: Sequence[pa.RecordBatch], name: str) -> None:
        columns = [batch.column(name) for batch in batches]
        self._offsets = [column.offsets.to_numpy() for column in columns]
        self._values = [column.values.to_numpy() for column in columns]

    def __getitem__(self, place: tuple[int, int]) -> np.ndarray[Any, Any]:
        batch, row = place
        start, end = self._offsets[batch][row : row + 2]
        return self._values[batch][start:end]

"""Receipts of written blocks to commits, every two seconds, on the driver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer

_COMMIT_EVERY_SECONDS = 2.0
# A commit rewrites the list of fragments: on a table with many, commit less often rather than spend time on it.
_COMMIT_SHARE = 0.02


def committed(
    receipts: Iterable[dict[str, Any]], indexes: Sequence[PassageIndex], present: Sequence[dict[str, bytes]]
) -> Iterator[dict[str, Any]]:
    """Commit blocks as they come, and yield their receipts; all of them are committed when the last one is yielded.

    Args:
        receipts: rows of `RECEIPT_SCHEMA`.
        indexes: where their blocks were written, in the order of each receipt's own.
        present: ids that each index held before. A new row replaces the old one in the same commit.
    """
    clock = _CommitClock()
    pending = [_Pending(index, held) for index, held in zip(indexes, present, strict=True)]
    for receipt in receipts:
        for each, written in zip(pending, receipt["receipts"], strict=True):
            each.add(receipt["key"], written, receipt["ids"])
        if clock.due():
            with clock:
                for each in pending:
                    each.commit()
        yield receipt
    for each in pending:
        each.commit()


class _Pending:
    """What was written to an index and is not committed yet."""

    def __init__(self, index: PassageIndex, present: dict[str, bytes]) -> None:
        self._committer, self._present = Committer(index), present
        self._receipts: dict[str, str] = {}
        self._replaced: list[str] = []

    def add(self, key: str, receipt: str, ids: Sequence[str]) -> None:
        self._receipts[key] = receipt
        self._replaced += [i for i in ids if i in self._present]

    def commit(self) -> None:
        self._committer.commit(self._receipts, self._replaced)
        self._receipts, self._replaced = {}, []


class _CommitClock:
    """Says when the next commit is due, and times each."""

    def __init__(self) -> None:
        self._next = 0.0
        self._start = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        end = time.monotonic()
        self._next = end + max(_COMMIT_EVERY_SECONDS, (end - self._start) / _COMMIT_SHARE)

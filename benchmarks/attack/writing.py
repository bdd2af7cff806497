"""A writer without a lock: prepares a change when told to, says so, and commits it when told to go.

`python -m benchmarks.attack.writing` takes a change as a line of JSON on standard input, then `go`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, write_block
from tests.index.compressed_cases import block

LOST = "lost"
"""Said where another writer was first, and nothing of the change is there."""
_CHANGED = "another process changed"


def prepared(uri: str, change: str, ids: list[str], text: str) -> Callable[[], object]:
    """Return what makes a change, once everything before its commit is done.

    Args:
        uri: of the index.
        change: `write`, `delete` or `compact`.
        ids: of the passages.
        text: of those that are written.
    """
    index = PassageIndex.open(uri)
    if change == "delete":
        return lambda: index.delete(ids)
    if change == "compact":
        return index.compact
    there = index.passages(ids)
    receipt = write_block(uri, block(ids, len(text), text))
    return lambda: Committer(index).commit({"block": receipt}, [each for each in ids if each in there])


def main() -> None:
    """Make the changes that standard input names."""
    logging.getLogger("diffretriever").setLevel(logging.ERROR)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        commit = prepared(asked["uri"], asked["change"], asked["ids"], asked["text"])
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            commit()
            print("done", flush=True)
        except ValueError as error:
            print(LOST if _CHANGED in str(error) else f"ValueError: {error}".replace("\n", " "), flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()

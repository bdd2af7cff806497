"""The selection of passages in a process of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import numpy as np

from benchmarks.measuring import peak_mb, serve_child

_PER_PART = 200_000


def selection(passages: int) -> list[float]:
    """Return the figures of one size; a key is a passage of the corpus or of the index."""
    from diffretriever.collections import open_collection
    from diffretriever.collections.keys import KEY, KeySet, PassageSelection, keys_of
    from diffretriever.collections.pydoc import PYDOC
    from diffretriever.collections.records import Part
    from diffretriever.collections.scanning import PartScan, scan
    from diffretriever.schemas.encode import EncodeJob

    # Its text is not read: the parts are made up.
    collection = open_collection(PYDOC)

    def keys(start: int, end: int, step: int = 1) -> np.ndarray:
        numbers = range(start, end, step)
        return keys_of((f"passage-{i}" for i in numbers), (i.to_bytes(16, "little") for i in numbers))

    state = collection.source_state()

    def parts() -> Iterator[PartScan]:
        for start in range(0, passages, _PER_PART):
            end = min(start + _PER_PART, passages)
            none = np.zeros(0, np.int64)
            yield PartScan(Part(start, end), state, end - start, 0, keys(start, end), none, (), Counter())

    before, started = peak_mb(), time.perf_counter()
    found = list(parts())
    held = np.zeros(-(-passages // 2), KEY)
    for start in range(0, passages, _PER_PART):
        own = keys(start, min(start + _PER_PART, passages), 2)
        held[start // 2 : start // 2 + len(own)] = own
    hashed = time.perf_counter()
    chosen = PassageSelection(EncodeJob(collection="", retriever="bm25", index="."), [KeySet(held)])
    scanned = scan(collection, "error", None, choose=chosen, scan_parts=lambda _, __: found)
    ended = time.perf_counter()
    n_keys = passages + len(held)
    peak = (peak_mb() - before) * 1e6 / n_keys
    return [passages, len(held), hashed - started, ended - hashed, peak, scanned.n_kept]


if __name__ == "__main__":
    serve_child({"selection": selection})

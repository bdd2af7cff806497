"""A table of very many fragments, and what it takes to do something with it: run in a process of its own."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import lance
from lance.fragment import FragmentMetadata

from benchmarks.measuring import serve_child
from diffretriever.collections import Passage
from diffretriever.index.compaction import plan
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex, table_uri
from diffretriever.index.writer import BlockWriter, Committer, text_table
from diffretriever.schemas.base import Model
from diffretriever.schemas.retriever import Bm25Retriever

_NAMES = 50_000
"""Of a file; file systems limit them."""


class Took(Model):
    """The median of some repetitions, in seconds."""

    clock: float
    processor: float
    """Of all threads."""


class Figures(Model):
    """What one table took."""

    fragments: int
    manifest_bytes: int
    took: dict[str, Took]
    """By what was done."""


def measure(folder: str, fragments: int, repeats: int) -> Figures:
    """Make a table of so many fragments of one passage each, and time what jobs do with it.

    Args:
        folder: that is not there yet.
        fragments: how many.
        repeats: of everything but the reading of all digests, which happens once.
    """
    _make(folder, fragments)
    index = PassageIndex.open(folder)
    writer, committer = BlockWriter(folder), Committer(index)
    manifest = _manifest(folder)
    receipts = [(str(n), writer.write(text_table([Passage(f"new{n}", "", "text")], "c"))) for n in range(repeats)]

    def commit() -> None:
        key, receipt = receipts.pop()
        committer.commit({key: receipt}, [])

    took = {
        "open": _median(lambda: PassageIndex.open(folder), repeats),
        "write a block": _median(lambda: writer.write(text_table([Passage("n", "", "text")], "c")), repeats),
        "commit a block": _median(commit, repeats),
        "plan a compaction": _median(lambda: plan(index.dataset), repeats),
        "digests": _median(index.digests, 1),
    }
    return Figures(fragments=fragments, manifest_bytes=manifest, took=took)


def _make(folder: str, fragments: int) -> None:
    """Give data files many names: writing as many files would take most of the time, and say nothing."""
    index = PassageIndex.create(folder, bm25_manifest(Bm25Retriever()))
    (written,) = json.loads(BlockWriter(folder).write(text_table([Passage("p", "", "text")], "c")))
    (file,) = written["files"]
    data = Path(table_uri(folder), "data")
    content, named = (data / file["path"]).read_bytes(), []
    for number in range(fragments):
        # As long as the names that Lance gives.
        name = f"{number:050d}.lance"
        if number % _NAMES == 0:
            source = data / name
            source.write_bytes(content)
        else:
            (data / name).hardlink_to(source)
        named.append(FragmentMetadata.from_json(json.dumps({**written, "files": [{**file, "path": name}]})))
    operation = lance.LanceOperation.Overwrite(index.dataset.schema, named)
    lance.LanceDataset.commit(table_uri(folder), operation, read_version=index.version)


def _manifest(folder: str) -> int:
    return max(file.stat().st_size for file in Path(table_uri(folder), "_versions").glob("*.manifest"))


def _median(action: Callable[[], object], repeats: int) -> Took:
    pairs = []
    for _ in range(repeats):
        clock, processor = time.perf_counter(), time.process_time()
        action()
        pairs.append((time.perf_counter() - clock, time.process_time() - processor))
    clocks, processors = zip(*pairs, strict=True)
    return Took(clock=statistics.median(clocks), processor=statistics.median(processors))


if __name__ == "__main__":
    serve_child({measure.__name__: measure})

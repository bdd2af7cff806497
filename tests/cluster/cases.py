"""Jobs on the nodes, and what an index on S3 must hold after them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffretriever.index.table import PassageIndex
from tests.cluster.nodes import Job, Node, Nodes
from tests.cluster.s3 import S3
from tests.pipelines.corpora import line, write_corpus

N = 192
ROWS_PER_BLOCK = 16
IDS = {f"p{number}" for number in range(N)}
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Bench:
    """The cluster with a corpus and a checkpoint on every node, at equal paths."""

    nodes: Nodes
    s3: S3
    corpus: Path
    checkpoint: Path

    def index(self) -> str:
        """Return the URI of an index that is not there yet."""
        return self.s3.uri(f"index-{next(_NUMBERS)}")

    @property
    def driver(self) -> Node:
        """The node where jobs are run. A head without CPUs cannot read for them yet."""
        return self.nodes.nodes[1]

    def encode(self, index: str, *flags: object, node: Node | None = None) -> Job:
        """Start to encode the corpus with two masked encoders."""
        model = ("--retriever", "diffretriever-llada", "--backbone", self.checkpoint, "--encoders", 2)
        return self._encode(index, *model, *flags, node=node)

    def encode_bm25(self, index: str, *flags: object, node: Node | None = None) -> Job:
        """Start to store the corpus for BM25."""
        return self._encode(index, "--retriever", "bm25", *flags, node=node)

    def _encode(self, index: str, *flags: object, node: Node | None) -> Job:
        where = ("--collection", self.corpus, "--index", index, "--rows-per-block", ROWS_PER_BLOCK)
        return self.nodes.start(node or self.driver, "encode_beir.py", *where, *flags)

    def run(self, program: str, *flags: object) -> str:
        """Run another job and return what it prints."""
        return self.nodes.start(self.driver, program, *flags).done()


def write_bench_corpus(folder: Path) -> Path:
    """Write the corpus; its texts make an encoder busy for a moment."""
    return write_corpus(folder, [line(number, f"passage {number} " + "text " * 40) for number in range(N)])


def stored(index: str) -> dict[str, np.ndarray]:
    """Return id → slot vectors of an index; each id must be there once."""
    rows = [row for batch in PassageIndex.open(index).batches(["id", "reps"], 1000) for row in batch.to_pylist()]
    found = {row["id"]: np.array(row["reps"], np.float32) for row in rows}
    assert len(found) == len(rows), "a passage is there twice"
    return found


def ids_in(index: str) -> set[str]:
    """Return the ids of an index; each must be there once."""
    ids = [i for batch in PassageIndex.open(index).batches(["id"], 1000) for i in batch.column("id").to_pylist()]
    assert len(ids) == len(set(ids)), "a passage is there twice"
    return set(ids)


def once(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that makes the call the first time only."""
    calls = itertools.count()
    return lambda: None if next(calls) else call() and None

"""Jobs on the nodes, and what an index on S3 must hold after them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyarrow import fs

from diffretriever.core.files import filesystem_of
from diffretriever.index.table import PassageIndex
from tests.cluster.nodes import Job, Node, Nodes
from tests.cluster.s3 import S3
from tests.pipelines.corpora import line

N = 192
IDS = {f"p{number}" for number in range(N)}
LINES = [line(number, f"passage {number} " + "text " * 40) for number in range(N)]
CORPUS, CHECKPOINT, RETRIEVER = "corpus", "checkpoint", "retriever.yaml"
"""What lies on the disk of each node."""
# Left to itself, each index would have the precision that a probe finds faster at that moment.
MASKED = "method: masked\nbackbone: {source: checkpoint, dtype: float32}\nbudget: q4p4\n"
CPUS = {"head": 0, "first": 2, "second": 2}
"""Of each node. A head that computes nothing is what most clusters have."""
WRITES, COMMITS = "/data/", "/_versions/"
"""What requests of an index's table have in their paths."""
_ROWS_PER_BLOCK = 16
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Bench:
    """Jobs on a cluster, with indexes on S3."""

    nodes: Nodes
    s3: S3

    def index(self) -> str:
        """Return the URI of an index that is not there yet."""
        return self.s3.uri(f"index-{next(_NUMBERS)}")

    @property
    def driver(self) -> Node:
        """The node where jobs are run: the head."""
        return self.nodes.nodes[0]

    def encode(self, index: str, collection: str = "", backbone: str = "") -> Job:
        """Start to encode the corpus with two masked encoders, for which it takes two nodes.

        Args:
            index: to encode into.
            collection: by default the nodes' corpus.
            backbone: by default the nodes' checkpoint.
        """
        model = ("--retriever", self.nodes.disk / RETRIEVER, "--backbone", backbone or self.nodes.disk / CHECKPOINT)
        encoders = ("--encoders", 2, "--cpus-per-encoder", 1.25)
        return self._encode(self.driver, index, collection, *model, *encoders)

    def encode_bm25(self, index: str, node: Node | None = None) -> Job:
        """Start to store the corpus for BM25."""
        return self._encode(node or self.driver, index, "", "--retriever", "bm25")

    def _encode(self, node: Node, index: str, collection: str, *flags: object) -> Job:
        where = ("--collection", collection or self.nodes.disk / CORPUS, "--index", index)
        common = ("--rows-per-block", _ROWS_PER_BLOCK)
        return self.nodes.start(node, "encode_beir.py", *where, *flags, *common)

    def upload(self, folder: Path) -> str:
        """Put a folder of this machine into the bucket, under its own name, and return its URI."""
        uri = self.s3.uri(folder.name)
        target, path = filesystem_of(uri)
        fs.copy_files(str(folder), path, destination_filesystem=target)
        return uri

    def run(self, program: str, *flags: object) -> str:
        """Run another job and return what it prints."""
        return self.nodes.start(self.driver, program, *flags).done()


def vectors_in(index: str) -> dict[str, np.ndarray]:
    """Return id → float32 [K_p, H] of an index; each passage must be there once."""
    rows = [row for batch in PassageIndex.open(index).batches(["id", "reps"], N) for row in batch.to_pylist()]
    found = {row["id"]: np.array(row["reps"], np.float32) for row in rows}
    assert len(found) == len(rows), "a passage is there twice"
    return found


def ids_in(index: str) -> set[str]:
    """Return the ids of an index; each passage must be there once."""
    ids = [i for batch in PassageIndex.open(index).batches(["id"], N) for i in batch.column("id").to_pylist()]
    assert len(ids) == len(set(ids)), "a passage is there twice"
    return set(ids)

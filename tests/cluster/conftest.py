"""A cluster to test on: three nodes that share nothing but the network and an S3 endpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cases import CHECKPOINT, CORPUS, CPUS, LINES, MASKED, RETRIEVER, Bench
from tests.cluster.nodes import Nodes
from tests.cluster.s3 import S3
from tests.pipelines.corpora import write_corpus


@pytest.fixture(scope="session")
def s3(s3: S3) -> Iterator[S3]:
    """The endpoint, which this process reaches as the nodes do."""
    with s3.reached():
        yield s3


@pytest.fixture(scope="session")
def nodes(s3: S3, warm: None, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes, with a corpus and a random checkpoint on each; a test that kills one adds another."""
    folder, files = tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("files")
    write_corpus(files / CORPUS, LINES)
    shutil.copytree(checkpoint, files / CHECKPOINT)
    (files / RETRIEVER).write_text(MASKED, "utf-8")
    started = Nodes(folder, tmp_path_factory.getbasetemp(), files, s3.environment)
    try:
        for name, cpus in CPUS.items():
            started.add(name, cpus)
        yield started
    finally:
        left = started.close()
    assert not left


@pytest.fixture(scope="session")
def bench(nodes: Nodes, s3: S3) -> Bench:
    """Jobs on these nodes."""
    return Bench(nodes, s3)


@pytest.fixture(scope="session")
def reference(bench: Bench) -> str:
    """The URI of an index that nothing disturbed."""
    index = bench.index()
    bench.encode(index).done()
    return index

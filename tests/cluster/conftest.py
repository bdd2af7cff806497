"""A cluster to test on: three nodes that share nothing but the network and an S3 endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cases import Bench, write_bench_corpus
from tests.cluster.nodes import Nodes
from tests.cluster.s3 import S3, s3_endpoint

CPUS = {"head": 0, "first": 2, "second": 2}
"""Of each node. A head that computes nothing is what most clusters have."""


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 endpoint with a fault proxy before it; this process reaches it as the nodes do."""
    with s3_endpoint(tmp_path_factory.mktemp("s3") / "log") as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in endpoint.environment.items():
            patch.setenv(name, value)
        yield endpoint


@pytest.fixture(scope="session")
def nodes(s3: S3, warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes; a test that kills one adds another."""
    folder = tmp_path_factory.mktemp("nodes")
    started = Nodes(folder, tmp_path_factory.getbasetemp(), s3.environment)
    try:
        for name, cpus in CPUS.items():
            started.add(name, cpus)
        yield started
    finally:
        left = started.close()
    assert not left


@pytest.fixture(scope="session")
def on_nodes(nodes: Nodes, checkpoint: Path) -> Path:
    """Where the random checkpoint is on every node."""
    place = nodes.disk / "checkpoint"
    nodes.put(checkpoint, place)
    return place


@pytest.fixture(scope="session")
def bench(nodes: Nodes, s3: S3, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The nodes with a corpus and a random checkpoint on each."""
    bench = Bench(nodes, s3, nodes.disk / "corpus", nodes.disk / "checkpoint")
    nodes.put(write_bench_corpus(tmp_path_factory.mktemp("corpus")), bench.corpus)
    nodes.put(checkpoint, bench.checkpoint)
    return bench

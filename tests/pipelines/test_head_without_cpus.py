"""A head that offers no CPUs, as clusters often have it: what must run beside the driver runs there all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
import ray
from ray.cluster_utils import Cluster

from diffretriever.pipelines.cluster import connect, cpus_here
from diffretriever.pipelines.streams import blocks_of, pack, read_on_driver

pytestmark = pytest.mark.cluster


@pytest.fixture
def head(no_cluster: None) -> Iterator[str]:
    """The id of the driver's machine, the head of a cluster whose only worker has two CPUs."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    connect(cluster.address)
    yield ray.get_runtime_context().get_node_id()
    ray.shutdown()
    cluster.shutdown()


def test_the_reader_runs_there(head: str) -> None:
    # Of its own, so that Ray sends it to workers as a whole: they cannot import tests.
    def where() -> Iterator[pa.Table]:
        yield pack(ray.get_runtime_context().get_node_id(), pa.table({"row": [0]}))

    assert cpus_here(0.1) == 0
    assert [node for node, _ in blocks_of(read_on_driver(where))] == [head]

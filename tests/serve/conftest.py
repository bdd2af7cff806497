"""One Ray Serve session with the application in both of its layouts, over one index."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx2
import pytest

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from tests.ports import free_port
from tests.serve.asking import BEARER, KEY, LIMIT_S, SETTINGS
from tests.serving.serving_cases import random_encoder, small_index


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return random_encoder(tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    """Tests that write to it leave it as they found it, but for its version."""
    return small_index(encoder, str(tmp_path_factory.mktemp("index")))


@pytest.fixture(scope="module")
def address(index: PassageIndex, warm: None) -> Iterator[str]:
    """Where the applications answer.

    `/together` asks for a key, `/apart` has two encoders and two shards, of which one is enough.
    """
    import ray
    from ray import serve

    from diffretriever.pipelines.cluster import connect
    from diffretriever.serve.app import search_app
    from diffretriever.serve.starting import ENVIRONMENT

    # Proxies that are slow to start on a busy machine would be killed, and started again.
    checks = {f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": str(LIMIT_S) for check in ("READY", "HEALTH")}
    variables = {**checks, **ENVIRONMENT}
    os.environ.update(variables)
    port = free_port()
    # That of other modules has too few CPUs.
    ray.shutdown()
    connect("local", num_cpus=9, _system_config={"enable_metrics_collection": True, "metrics_report_interval_ms": 1000})
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    os.environ["DIFFRETRIEVER_API_KEY"] = KEY
    together = search_app({"index": index.uri, **SETTINGS, "max_ongoing": 16})
    del os.environ["DIFFRETRIEVER_API_KEY"]
    parts = {"layout": "apart", "shards": 2, "encoder.min_replicas": 2, "encoder.max_replicas": 2}
    apart = search_app({"index": index.uri, **SETTINGS, **parts, "shards_needed": 1})
    serve.run_many(
        [
            serve.RunTarget(together, name="together", route_prefix="/together"),
            serve.RunTarget(apart, name="apart", route_prefix="/apart"),
        ]
    )
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()
    for name in variables:
        del os.environ[name]


@pytest.fixture(params=["together", "apart"])
def client(request: pytest.FixtureRequest, address: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{address}/{request.param}", headers=BEARER, timeout=LIMIT_S) as made:
        yield made

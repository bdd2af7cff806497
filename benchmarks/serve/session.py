"""The application that is measured: started with a cluster of its own, its memory, and how its actors are killed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

CLUSTER_CPUS = 8
"""More than most machines of a test have: Ray shall place everything at once, and the system shares its cores."""


@contextmanager
def serving(settings: dict[str, Any], *, haproxy: bool) -> Iterator[str]:
    """Serve by these settings of `ServeConfig` on a free port; yields the address."""
    os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = str(int(haproxy))
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"
    import ray
    from ray import serve

    from diffretriever.pipelines.cluster import connect
    from diffretriever.serve.app import search_app
    from diffretriever.serve.starting import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    connect("local", num_cpus=CLUSTER_CPUS)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(search_app({"open": True, **settings}))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def replica_mb() -> float:
    """Return the memory that the replicas hold now, in MB; pages that they share with others are counted in part."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        # A process may end while it is looked at.
        with suppress(psutil.Error):
            if "ServeReplica" in " ".join(process.cmdline()):
                total += process.memory_full_info().pss
    return total / 1e6


def kill_actor(name: str) -> None:
    """Kill the process of an actor of Ray Serve whose name has `name` in it; Ray Serve is to replace it."""
    import ray

    full = next(a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if name in a["name"])
    ray.kill(ray.get_actor(full, namespace="serve"), no_restart=False)

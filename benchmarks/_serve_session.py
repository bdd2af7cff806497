"""The application of benchmarks/serve.py: started with a cluster of its own, and its memory."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def serving(index: str, threads: int, *, haproxy: bool) -> Iterator[str]:
    """Serve an index, together, on a free port; yields the address."""
    os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = str(int(haproxy))
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"
    import ray
    from ray import serve

    from diffretriever.pipelines.cluster import python_path
    from serve.app import search_app

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(search_app({"index": index, "threads": threads, "max_ongoing": 128}))
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

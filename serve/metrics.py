"""Prometheus metrics, through Ray, which adds deployment, replica and application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import ray
from ray.serve.metrics import Counter, Gauge, Histogram

from diffretriever.serving.measure import Measured
from diffretriever.serving.problems import UnavailableError

_MILLISECONDS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0]
_REQUESTS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
_SLOTS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
_FAMILIES = ("ray_diffretriever_", "ray_serve_")
"""Name prefixes of this application's metrics and of Ray Serve's."""
_TAGS: dict[Measured, str] = {"stage_ms": "stage", "reduced_requests": "level"}
"""Tag names by metric; the default is `kind`."""
_AGENT_S = 5.0


class RayMetrics:
    """Passes measurements to Ray. Create it in a replica.

    Attributes:
        record: records a value of each metric.
    """

    def __init__(self) -> None:
        stage, kind = ("stage",), ("kind",)
        self.record: dict[Measured, Callable[..., None]] = {
            "stage_ms": Histogram("diffretriever_stage_ms", "Duration by stage", _MILLISECONDS, stage).observe,
            "batch_requests": Histogram("diffretriever_batch_requests", "Batch size", _REQUESTS, kind).observe,
            "waiting_requests": Gauge("diffretriever_waiting_requests", "Queued requests", kind).set,
            "query_slots": Histogram("diffretriever_query_slots", "K_q of queries", _SLOTS).observe,
            "reduced_requests": Counter("diffretriever_reduced_requests", "Reduced responses", ("level",)).inc,
            "partial_answers": Counter("diffretriever_partial_answers", "Responses without some shard").inc,
            "held_passages": Gauge("diffretriever_held_passages", "Passages of the newest open version").set,
            "index_version": Gauge("diffretriever_index_version", "Newest open version").set,
            "held_bytes": Gauge("diffretriever_held_bytes", "Bytes of open 8-bit codes and postings").set,
        }

    def __call__(self, name: Measured, value: float, tag: str = "") -> None:
        """Record a value."""
        self.record[name](value, tags={_TAGS.get(name, "kind"): tag} if tag else None)


async def exposition() -> str:
    """Return this node's metrics in Prometheus text format."""
    address = await asyncio.to_thread(_agent)
    try:
        # Plain HTTP to this node: loading certificates would block searches for tens of milliseconds.
        async with httpx2.AsyncClient(timeout=_AGENT_S, verify=False) as client:
            answer = (await client.get(f"http://{address}/metrics")).raise_for_status()
    except httpx2.HTTPError:
        raise UnavailableError("Ray's metrics agent does not answer") from None
    # A comment has the name third: `# TYPE name gauge`.
    comments = tuple(f"# {kind} {family}" for kind in ("HELP", "TYPE") for family in _FAMILIES)
    return "".join(line for line in answer.text.splitlines(keepends=True) if line.startswith((*_FAMILIES, *comments)))


def _agent() -> str:
    node_id = ray.get_runtime_context().get_node_id()
    node = next(info for info in ray.nodes() if info["NodeID"] == node_id)
    return f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"

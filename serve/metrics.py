"""Prometheus metrics, through Ray, which adds deployment, replica and application."""

from __future__ import annotations

import asyncio

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
        self.metrics: dict[Measured, Counter | Gauge | Histogram] = {
            "stage_ms": Histogram("diffretriever_stage_ms", "Milliseconds by stage", _MILLISECONDS, tag_keys=stage),
            "batch_requests": Histogram(
                "diffretriever_batch_requests", "Requests in a batch", _REQUESTS, tag_keys=kind
            ),
            "waiting_requests": Gauge("diffretriever_waiting_requests", "Queued requests", tag_keys=kind),
            "query_slots": Histogram("diffretriever_query_slots", "Slots of a query, K_q", _SLOTS),
            "reduced_requests": Counter("diffretriever_reduced_requests", "Reduced responses", tag_keys=("level",)),
            "partial_answers": Counter("diffretriever_partial_answers", "Responses that lack a shard"),
            "held_passages": Gauge("diffretriever_held_passages", "Passages of the newest version searched here"),
            "index_version": Gauge("diffretriever_index_version", "Newest version searched here"),
            "held_bytes": Gauge("diffretriever_held_bytes", "Bytes of 8-bit codes and postings searched here"),
        }

    def __call__(self, name: Measured, value: float, tag: str = "") -> None:
        """Record a value."""
        metric = self.metrics[name]
        tags = {_TAGS.get(name, "kind"): tag} if tag else None
        if isinstance(metric, Histogram):
            metric.observe(value, tags=tags)
        elif isinstance(metric, Gauge):
            metric.set(value, tags=tags)
        else:
            metric.inc(value, tags=tags)


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

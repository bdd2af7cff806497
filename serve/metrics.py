"""Measurements for Prometheus, by way of Ray's metrics; Ray adds deployment, replica and application."""

from __future__ import annotations

import asyncio

import httpx2
import ray
from ray.serve.metrics import Counter, Gauge, Histogram

from diffretriever.schemas.serve import PartState
from diffretriever.serving.metrics import Kind, Stage
from diffretriever.serving.problems import UnavailableError

_MILLISECONDS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0]
_QUERIES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
_SLOTS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
_FAMILIES = ("ray_diffretriever_", "ray_serve_")
"""How names begin: of what is measured here, and of what Ray Serve measures of proxies and replicas."""
_AGENT_S = 5.0


class RayMetrics:
    """To be made in a replica."""

    def __init__(self) -> None:
        self._stage = Histogram(
            "diffretriever_stage_ms", "Milliseconds of a request by stage", _MILLISECONDS, tag_keys=("stage",)
        )
        self._batch = Histogram(
            "diffretriever_batch_queries",
            "Requests (answer) or queries computed together",
            _QUERIES,
            tag_keys=("kind",),
        )
        self._waiting = Gauge("diffretriever_waiting_requests", "Requests beside the batch", tag_keys=("kind",))
        self._slots = Histogram("diffretriever_query_slots", "K_q of queries", _SLOTS)
        self._reduced = Counter(
            "diffretriever_reduced_requests", "Answers lowered because many requests wait", tag_keys=("level",)
        )
        self._partial = Counter("diffretriever_partial_answers", "Answers without the passages of some shard")
        self._passages = Gauge("diffretriever_held_passages", "Passages of the newest version searched here")
        self._version = Gauge("diffretriever_index_version", "Newest version of the index that is searched here")
        self._bytes = Gauge("diffretriever_held_bytes", "Bytes of the codes and postings that they are searched by")

    def stage(self, stage: Stage, milliseconds: float) -> None:
        """See `diffretriever.serving.metrics`."""
        self._stage.observe(milliseconds, tags={"stage": stage})

    def batch(self, kind: Kind, size: int, waiting: int) -> None:
        """See `diffretriever.serving.metrics`."""
        self._batch.observe(size, tags={"kind": kind})
        self._waiting.set(waiting, tags={"kind": kind})

    def budget(self, slots: int | None) -> None:
        """See `diffretriever.serving.metrics`; retrievers without slots have none to count."""
        if slots is not None:
            self._slots.observe(slots)

    def reduced(self, level: int) -> None:
        """See `diffretriever.serving.metrics`."""
        self._reduced.inc(tags={"level": str(level)})

    def partial(self) -> None:
        """See `diffretriever.serving.metrics`."""
        self._partial.inc()

    def part(self, version: int, state: PartState) -> None:
        """See `diffretriever.serving.metrics`."""
        self._version.set(version)
        self._passages.set(state.passages)
        self._bytes.set(state.mapped_bytes)


async def exposition() -> str:
    """Return what Ray has measured on this replica's machine, in the text format of Prometheus.

    Raises:
        UnavailableError: Ray's agent on this machine, which has it, does not answer.
    """
    address = await asyncio.to_thread(_agent)
    try:
        # Plain HTTP on this machine: to load certificates would hold up searches for tens of milliseconds.
        async with httpx2.AsyncClient(timeout=_AGENT_S, verify=False) as client:
            answer = (await client.get(f"http://{address}/metrics")).raise_for_status()
    except httpx2.HTTPError:
        raise UnavailableError("Ray's metrics agent does not answer") from None
    return chosen(answer.text)


def chosen(text: str) -> str:
    """Return the lines of an exposition that are of the application or of Ray Serve: a tenth of all that Ray has."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if _name(line).startswith(_FAMILIES))


def _name(line: str) -> str:
    """Return the name that a line begins with; a comment says it third: `# TYPE name gauge`."""
    return line.split(" ", 3)[2] if line.startswith(("# HELP ", "# TYPE ")) else line


def _agent() -> str:
    here = ray.get_runtime_context().get_node_id()
    node = next(each for each in ray.nodes() if each["NodeID"] == here)
    return f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"

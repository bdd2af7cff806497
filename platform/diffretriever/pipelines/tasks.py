"""A function called for each piece of a job's work: a single piece in this process, several in Ray tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diffretriever.pipelines.cluster import cpus_here, ray_session, result_of


def call_each(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the result of each call, in order: one here, several on the nodes of the Ray session."""
    if len(calls) > 1:
        with ray_session():
            yield from in_tasks(function, calls, cpus=1, at_once=len(calls))
    else:
        yield from (function(*arguments) for arguments in calls)


def in_tasks(
    function: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *,
    cpus: float,
    at_once: int,
    on_this_node: bool = False,
) -> Iterator[Any]:
    """Yield the result of each call, in order, from tasks of the running Ray session.

    Args:
        function: to call.
        calls: the arguments of each call.
        cpus: of each task.
        at_once: number of calls that run or wait at a time.
        on_this_node: whether only the driver's node has the files.

    Raises:
        ValueError: The function raised it.
    """
    options: dict[str, Any] = {"num_cpus": cpus}
    if on_this_node:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": cpus_here(cpus), "scheduling_strategy": here}
    task = ray.remote(function).options(**options)
    left = iter(calls)
    running = deque(task.remote(*arguments) for arguments in islice(left, at_once))
    while running:
        yield result_of(running.popleft())
        running.extend(task.remote(*arguments) for arguments in islice(left, 1))

"""Calls a function for each part of a job: one part in this process, several in Ray tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diffretriever.pipelines.cluster import cpus_here, ray_session, result_of


def call_each(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the result of each call, in order: a single call in this process, several on Ray."""
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
    """Yield the result of each call, in order, from Ray tasks.

    `cpus` is per task; at most `at_once` calls run or wait. `on_this_node` pins tasks to the driver's node.

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

"""Calls a function for each part of a job: one part in this process, several in Ray tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import ray

from diffretriever.pipelines.cluster import on_this_node, ray_session, result_of


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
    local: bool = False,
) -> Iterator[Any]:
    """Yield the result of each call, in order, from Ray tasks.

    `cpus` is per task; at most `at_once` calls run or wait. `local` pins tasks to the driver's node.

    Raises:
        ValueError: The function raised it.
    """
    task = ray.remote(function).options(**(on_this_node(cpus) if local else {"num_cpus": cpus}))
    left = iter(calls)
    running = deque(task.remote(*arguments) for arguments in islice(left, at_once))
    while running:
        yield result_of(running.popleft())
        running.extend(task.remote(*arguments) for arguments in islice(left, 1))

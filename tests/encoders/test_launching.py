"""Batches on a device: one at a time, and a few in flight."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from diffretriever.backbones.cpu_tuning import is_small_pass
from diffretriever.backbones.device import DeviceQueue, torch_threads

CPU = torch.device("cpu")


def test_no_two_batches_compute_at_once() -> None:
    queue, alone = DeviceQueue(CPU), threading.Lock()

    def compute(number: int) -> int:
        assert alone.acquire(blocking=False)
        torch.ones(200, 200) @ torch.ones(200, 200)
        alone.release()
        return number

    with ThreadPoolExecutor(4) as threads:
        launched = list(threads.map(lambda number: queue.launch(compute, number), range(100)))
    assert [each.output for each in launched] == list(range(100))
    assert all(each.wait() > 0 for each in launched)


@pytest.mark.parametrize(("tokens", "hidden_size", "threads"), [(20, 384, 1), (8192, 384, 3), (20, 4096, 3)])
def test_a_small_pass_runs_in_one_thread(tokens: int, hidden_size: int, threads: int) -> None:
    with torch_threads(3):
        launched = DeviceQueue(CPU).launch(torch.get_num_threads, is_small=is_small_pass(tokens, hidden_size))
        assert torch.get_num_threads() == 3
    assert launched.output == threads

"""Batches on a device: one at a time, finished outside of its turn, and timed by the device's own clock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import psutil
import pytest
import torch

from diffretriever.backbones.cpu_tuning import is_small_pass
from diffretriever.backbones.device import Launcher, moved, peak_memory, to_host, torch_threads
from diffretriever.encoders import base
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.representations import Representations
from tests.encoders.encoder_cases import TEXTS, Make, assert_identical

CPU = torch.device("cpu")
SECONDS = 60
"""Only what is broken waits for so long."""


def test_a_batch_is_finished_while_another_computes() -> None:
    launcher, finishing, computing = Launcher(CPU), threading.Event(), threading.Event()

    def finish() -> str:
        finishing.set()
        assert computing.wait(SECONDS)
        return "first"

    def begin_second() -> Callable[[], str]:
        assert finishing.wait(SECONDS)
        computing.set()
        return lambda: "second"

    with ThreadPoolExecutor(2) as threads:
        first = launcher.launch(lambda: finish)
        results = [threads.submit(first.result), threads.submit(lambda: launcher.launch(begin_second).result())]
        made = [result.result() for result in results]
    assert [name for name, _ in made] == ["first", "second"]
    assert all(seconds > 0 for _, seconds in made)


def test_no_two_batches_compute_at_once() -> None:
    launcher, alone = Launcher(CPU), threading.Lock()

    def begin() -> Callable[[], None]:
        assert alone.acquire(blocking=False)
        torch.ones(200, 200) @ torch.ones(200, 200)
        alone.release()
        return lambda: None

    with ThreadPoolExecutor(4) as threads:
        for launched in threads.map(lambda _: launcher.launch(begin), range(100)):
            launched.result()


class FakeEvent:
    """Notes what is done to the events of a GPU."""

    noted: ClassVar[list[str]] = []

    def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
        assert enable_timing
        assert blocking

    def record(self, stream: str) -> None:
        self.noted.append(f"recorded on {stream}")

    def synchronize(self) -> None:
        self.noted.append("waited")

    def elapsed_time(self, _: FakeEvent) -> float:
        return 1500.0


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens on a GPU that is none."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    monkeypatch.setattr(FakeEvent, "noted", [])
    return FakeEvent.noted


def test_on_a_gpu_a_batch_lies_between_two_events_and_only_its_result_waits(noted: list[str]) -> None:
    def begin() -> Callable[[], str]:
        noted.append("launched")
        return lambda: "made"

    launched = Launcher(torch.device("cuda", 1)).launch(begin)
    recorded = "recorded on the stream of cuda:1"
    assert noted == [recorded, "launched", recorded]
    assert launched.result() == ("made", 1.5)
    assert noted[3:] == ["waited"]


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(3)
    assert to_host(tensor) is tensor
    assert moved(tensor, CPU) is tensor
    assert moved(tensor, CPU, torch.bool).tolist() == [False, True, True]


def test_a_process_knows_the_most_memory_it_has_had() -> None:
    held = np.ones(1 << 20)
    # The system counts pages of threads now and then.
    assert held.nbytes < psutil.Process().memory_info().rss <= peak_memory(CPU) + (1 << 20)


def test_of_many_texts_early_ones_are_finished_on_the_way(
    encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what waits to be finished does not grow with the texts."""
    encoder, texts = encoder_of("masked-llada"), TEXTS * 4
    monkeypatch.setattr(encoder, "tokens_per_batch", 1)
    expected = encoder.encode_queries(texts)
    monkeypatch.setattr(base, "_MOST_UNFINISHED", 5)
    finish = encoder.launch(encoder.preparer.prepare_queries(texts))
    unfinished = finish.__self__._launched  # type: ignore[attr-defined]
    assert len(unfinished) == 5
    (found,), _ = finish()
    assert_identical(found, expected)


@pytest.mark.parametrize(("tokens", "hidden_size", "threads"), [(20, 384, 1), (8192, 384, 3), (20, 4096, 3)])
def test_a_small_pass_runs_in_one_thread_whatever_torch_is_set_to(tokens: int, hidden_size: int, threads: int) -> None:
    counts = []

    def begin() -> Callable[[], None]:
        counts.append(torch.get_num_threads())
        return lambda: None

    with torch_threads(3):
        Launcher(CPU).launch(begin, is_small=is_small_pass(tokens, hidden_size)).result()
        assert torch.get_num_threads() == 3
    assert counts == [threads]


def test_an_encoder_runs_one_query_in_one_thread(
    make_masked: Make[MaskedEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, counts = make_masked("bert"), []
    begin = encoder.begin_batch

    def counting(texts: Sequence[PreparedText]) -> Callable[[], Representations]:
        counts.append(torch.get_num_threads())
        return begin(texts)

    monkeypatch.setattr(encoder, "begin_batch", counting)
    with torch_threads(3):
        encoder.encode_queries(["when do I cut roses?"])
    assert counts == [1]


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_openmp_sleep_while_they_wait_unless_the_environment_decides(
    given: str | None, expected: str
) -> None:
    code = "import os, diffretriever, torch; print(os.environ['OMP_WAIT_POLICY'])"
    without = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = without if given is None else {**without, "OMP_WAIT_POLICY": given}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == expected

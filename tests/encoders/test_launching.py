"""Batches on a device: one at a time, a few in flight, and timed by the device's own clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from diffretriever.backbones.cpu_tuning import is_small_pass
from diffretriever.backbones.device import DeviceQueue, moved, peak_memory, to_host, torch_threads
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.batching import LEAST_TOKENS
from diffretriever.encoders.preparer import PreparedText
from tests.encoders.encoder_cases import TEXTS, assert_close, encoded

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


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of events of a GPU."""
    notes: list[str] = []

    class FakeEvent:
        def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
            assert enable_timing
            assert blocking

        def record(self, stream: str) -> None:
            notes.append(f"recorded on {stream}")

        def synchronize(self) -> None:
            notes.append("waited")

        def elapsed_time(self, _: FakeEvent) -> float:
            return 1500.0

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    return notes


def test_on_a_gpu_a_batch_is_between_two_events_and_only_its_result_waits(noted: list[str]) -> None:
    launched = DeviceQueue(torch.device("cuda", 1)).launch(noted.append, "launched")
    recorded = "recorded on the stream of cuda:1"
    assert noted == [recorded, "launched", recorded]
    assert launched.wait() == 1.5
    assert noted[3:] == ["waited"]


def test_results_are_made_in_order_while_two_batches_wait(
    encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, events = encoder_of("masked-llada"), list[str]()
    compute, represent = encoder.encode_batch, encoder.represent

    def computing(texts: Sequence[PreparedText]) -> Any:
        events.append("launched")
        return compute(texts)

    def representing(texts: Sequence[PreparedText], computed: Any) -> Any:
        events.append("made")
        return represent(texts, computed)

    monkeypatch.setattr(encoder, "tokens_per_batch", 1)
    monkeypatch.setattr(encoder, "encode_batch", computing)
    monkeypatch.setattr(encoder, "represent", representing)
    progress: list[int] = []
    submitted = encoder.submit(encoder.preparer.prepare_queries(TEXTS), on_progress=progress.append)
    assert events == ["launched", "launched", *["launched", "made"] * (len(TEXTS) - 2)]
    assert progress == [1] * len(TEXTS)
    assert_close(submitted.result().parts[0], encoded(encoder))


def test_the_memory_of_two_batches_sets_their_size(
    encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of("pooled-bert")
    encoder.fit_batches("auto")
    assert encoder.tokens_per_batch == 2048, "a CPU's memory is not measured"
    peaks = iter([0, 2_000_000, 5_000_000])
    for name, value in {"memory_allocated": 0, "reset_peak_memory_stats": None, "empty_cache": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: next(peaks))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10_000_000, 0))
    (text,) = encoder.preparer.prepare_passages([""], ["word " * 5000])
    small = max(1, 1024 // len(text.input_ids)) * len(text.input_ids)
    assert encoder._probed_tokens() == pytest.approx(7 * small, rel=0.01)

    def full(_: Sequence[PreparedText]) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(encoder, "encode_batch", full)
    assert encoder._probed_tokens() == LEAST_TOKENS


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(3)
    assert to_host(tensor) is tensor
    assert moved(tensor, CPU) is tensor
    assert moved(tensor, CPU, torch.bool).tolist() == [False, True, True]
    assert peak_memory(CPU) > 1 << 20


@pytest.mark.parametrize(("tokens", "hidden_size", "threads"), [(20, 384, 1), (8192, 384, 3), (20, 4096, 3)])
def test_a_small_pass_runs_in_one_thread(tokens: int, hidden_size: int, threads: int) -> None:
    with torch_threads(3):
        launched = DeviceQueue(CPU).launch(torch.get_num_threads, is_small=is_small_pass(tokens, hidden_size))
        assert torch.get_num_threads() == 3
    assert launched.output == threads

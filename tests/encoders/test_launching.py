"""Batches on a device: one at a time, and a few in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from diffretriever.backbones.cpu_tuning import is_small_pass
from diffretriever.backbones.device import DeviceQueue, torch_threads
from diffretriever.encoders.base import Encoder
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


def test_results_are_made_in_order_while_two_batches_wait(
    encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, events = encoder_of("masked-dream"), list[str]()
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


@pytest.mark.parametrize(("tokens", "hidden_size", "threads"), [(20, 384, 1), (8192, 384, 3), (20, 4096, 3)])
def test_a_small_pass_runs_in_one_thread(tokens: int, hidden_size: int, threads: int) -> None:
    with torch_threads(3):
        launched = DeviceQueue(CPU).launch(torch.get_num_threads, is_small=is_small_pass(tokens, hidden_size))
        assert torch.get_num_threads() == 3
    assert launched.output == threads

"""Batches run one at a time, and are halved if memory runs out."""

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
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from tests.encoders.encoder_cases import TEXTS, Make, assert_close

CPU = torch.device("cpu")
MUCH = 65_536


def limit_memory(monkeypatch: pytest.MonkeyPatch, encoder: Encoder, tokens: int) -> list[int]:
    """Raise OutOfMemoryError above `tokens`; return the sizes of the batches that fit."""
    sizes: list[int] = []
    inner = "_states" if isinstance(encoder, MaskedEncoder) else "encode_batch"
    begin = getattr(encoder, inner)

    def limited(texts: Sequence[PreparedText]) -> Any:
        lengths = [len(text.input_ids) for text in texts]
        size = sum(lengths) if encoder.is_packed else len(texts) * max(lengths)
        if size > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        sizes.append(size)
        return begin(texts)

    monkeypatch.setattr(encoder, inner, limited)
    monkeypatch.setattr(encoder, "tokens_per_batch", MUCH)
    return sizes


def longest(encoder: Encoder) -> int:
    return max(len(text.input_ids) for text in encoder.preparer.prepare_passages([""] * len(TEXTS), TEXTS))


def test_halved_batches_give_the_same_results(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encoder.encode_passages([""] * len(TEXTS), TEXTS)
    tokens = 2 * longest(encoder)
    sizes = limit_memory(monkeypatch, encoder, tokens)
    result = encoder.submit(encoder.preparer.prepare_passages([""] * len(TEXTS), TEXTS)).result()
    assert_close(result.parts[0], expected)
    assert result.padded_tokens == sum(sizes)
    # Nothing fails again: the encoder remembers.
    assert encoder.tokens_per_batch <= tokens
    assert_close(encoder.encode_passages([""] * len(TEXTS), TEXTS), expected)


def test_a_text_that_does_not_fit_is_an_error(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = longest(encoder)
    limit_memory(monkeypatch, encoder, tokens - 1)
    with pytest.raises(ValueError, match=f"cpu has no memory for a single text of {tokens:,} tokens"):
        encoder.encode_passages([""] * len(TEXTS), TEXTS)


def test_batches_with_budgets_are_halved(make_masked: Make[MaskedEncoder], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_masked("dream", nested_slots=True, budget="q5p5", prompt={"variant": "few"}, tail_length=0)
    prepared, budgets = encoder.preparer.prepare_queries(TEXTS), (2, 5, 1)
    expected = encoder.submit(prepared, budgets).result().parts
    tokens = 2 * max(len(text.input_ids) for text in prepared)
    limit_memory(monkeypatch, encoder, tokens)
    parts = encoder.submit(prepared, budgets).result().parts
    for part, same_budget in zip(parts, expected, strict=True):
        assert_close(part, same_budget)
    assert encoder.tokens_per_batch <= tokens


def test_several_threads_at_once(encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoder actors encode blocks in parallel: no text is lost, and all threads use the lowered limit."""
    encoder = encoder_of("masked-dream")
    blocks = [encoder.preparer.prepare_passages([title] * len(TEXTS), TEXTS) for title in ("", "river", "honey water")]
    expected = [encoder.encode(block) for block in blocks]
    tokens = 2 * max(len(text.input_ids) for block in blocks for text in block)
    sizes = limit_memory(monkeypatch, encoder, tokens)
    with ThreadPoolExecutor(len(blocks)) as threads:
        done = [submitted.result() for submitted in threads.map(encoder.submit, blocks)]
    for result, wanted in zip(done, expected, strict=True):
        assert_close(result.parts[0], wanted)
    assert sum(result.padded_tokens for result in done) == sum(sizes)
    assert encoder.tokens_per_batch <= tokens


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

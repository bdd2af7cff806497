"""How many tokens a GPU has room for, by made-up memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffretriever.encoders.base import TOKENS_PER_BATCH_GPU, Encoder
from diffretriever.encoders.room import LEAST_TOKENS, SHARE, Pass, chosen_tokens, fitting_tokens, probed_tokens
from diffretriever.schemas.settings import RayConfig
from tests.encoders.test_out_of_memory import limit_memory

MB = 1 << 20


class MadeUpMemory:
    """Takes so much for a pass, and for each token of it."""

    def __init__(self, free: int, fixed: int, per_token: int, sizes: list[int]) -> None:
        self._free, self._fixed, self._per_token = free, fixed, per_token
        self._sizes = sizes

    def free(self) -> int:
        return self._free

    def taken_by(self, work: Callable[[], object]) -> int:
        work()
        return self._fixed + self._per_token * self._sizes[-1]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.integers(1, 1 << 24))
def test_a_batch_takes_no_more_than_its_share(free: int, fixed: int, per_token: int) -> None:
    small, large = (Pass(n, fixed + n * per_token) for n in (1000, 4000))
    tokens = fitting_tokens(small, large, free)
    assert LEAST_TOKENS <= tokens <= TOKENS_PER_BATCH_GPU
    assert tokens == LEAST_TOKENS or fixed + tokens * per_token <= SHARE * free * (1 + 1e-9) + 1
    assert tokens == TOKENS_PER_BATCH_GPU or fixed + (tokens + 2) * per_token > SHARE * free * (1 - 1e-9)


def test_passes_that_take_nothing_more_say_nothing() -> None:
    assert fitting_tokens(Pass(1000, MB), Pass(4000, MB), 0) == TOKENS_PER_BATCH_GPU


@pytest.mark.parametrize("case", ["masked-llada", "pooled-bert", "generated-qwen2"])
def test_an_encoder_is_probed_by_two_passes(
    case: str, encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(case)
    sizes = limit_memory(monkeypatch, encoder, 1 << 20)
    assert probed_tokens(encoder, MadeUpMemory(100 * MB, 2 * MB, 10_000, sizes)) == int((80 * MB - 2 * MB) / 10_000)
    once, small, large = sizes
    assert once <= small < large == 4 * small
    assert encoder.tokens_per_batch == 65_536, "what is chosen is for the caller to set"


def test_a_gpu_without_room_for_the_passes(
    encoder_of: Callable[[str], Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of("pooled-bert")
    sizes = limit_memory(monkeypatch, encoder, 1)
    assert probed_tokens(encoder, MadeUpMemory(MB, 0, 1, sizes)) == LEAST_TOKENS


def test_what_is_wanted_is_taken(encoder_of: Callable[[str], Encoder]) -> None:
    encoder = encoder_of("pooled-bert")
    assert encoder.facts.device == torch.device("cpu")
    assert chosen_tokens(encoder, 77) == 77
    assert chosen_tokens(encoder, "auto") == encoder.tokens_per_batch == 2048


def test_the_flag_says_so() -> None:
    said = RayConfig.model_fields["tokens_per_batch"].description
    assert said is not None
    assert f"{LEAST_TOKENS} to {TOKENS_PER_BATCH_GPU}" in said
    assert SHARE == 4 / 5
    assert "four fifths" in said

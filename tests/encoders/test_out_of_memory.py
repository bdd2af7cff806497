"""A device without memory for a batch: the encoder goes on with smaller ones, down to a single text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.representations import Representations
from tests.encoders.encoder_cases import TEXTS, assert_close

MUCH = 65_536


def limit_memory(monkeypatch: pytest.MonkeyPatch, encoder: Encoder, tokens: int) -> list[int]:
    """Let the encoder run out of memory beyond so many tokens; returns those of the batches that it had memory for."""
    sizes: list[int] = []
    inner = "_encode_cut" if isinstance(encoder, MaskedEncoder) else "encode_batch"
    encode = getattr(encoder, inner)

    def limited(texts: Sequence[PreparedText], *rest: object) -> Representations:
        size = len(texts) * max(len(text.input_ids) for text in texts)
        if size > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        sizes.append(size)
        made: Representations = encode(texts, *rest)
        return made

    monkeypatch.setattr(encoder, inner, limited)
    monkeypatch.setattr(encoder, "tokens_per_batch", MUCH)
    return sizes


def longest(encoder: Encoder) -> int:
    return max(len(text.input_ids) for text in encoder.preparer.prepare_passages([""] * len(TEXTS), TEXTS))


def test_results_are_the_same_in_smaller_batches(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encoder.encode_passages([""] * len(TEXTS), TEXTS)
    tokens = 2 * longest(encoder)
    sizes = limit_memory(monkeypatch, encoder, tokens)
    assert_close(encoder.encode_passages([""] * len(TEXTS), TEXTS), expected)
    assert encoder.cost.padded_tokens == sum(sizes)
    # Nothing fails again: the encoder remembers.
    assert encoder.tokens_per_batch <= tokens
    assert_close(encoder.encode_passages([""] * len(TEXTS), TEXTS), expected)


def test_smaller_budgets_of_nested_slots_too(masked: MaskedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    if not masked.config.nested_slots:
        pytest.skip("has none")
    prepared = masked.preparer.prepare_passages([""] * len(TEXTS), TEXTS)
    expected = masked.encode_cut(prepared, [1, 2])
    limit_memory(monkeypatch, masked, longest(masked))
    for found, wanted in zip(masked.encode_cut(prepared, [1, 2]), expected, strict=True):
        assert_close(found, wanted)


def test_a_single_text_that_does_not_fit_is_named_by_its_length(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = longest(encoder)
    limit_memory(monkeypatch, encoder, tokens - 1)
    with pytest.raises(ValueError, match=f"cpu has no memory for a single text of {tokens:,} tokens"):
        encoder.encode_passages([""] * len(TEXTS), TEXTS)

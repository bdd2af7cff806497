"""PromptReps: its vectors against a plain loop that runs whole texts without a cache, and where decoding stops.

Random models close no quotes. Two rows of the output head change places, so that a token that is decoded at some step
of some of the texts becomes a closing one there. Legend: M vectors of a text, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch

from diffretriever.encoders.generated import GeneratedEncoder
from diffretriever.schemas.retriever import ContentWordsConfig
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import TEXTS, Make, assert_close, impacts

N = 6
ENDS = {"qwen2": "<|im_end|>", "llama3": "<|eot_id|>"}


class Plain(NamedTuple):
    states_MH: torch.Tensor
    logits_MV: torch.Tensor
    predicted: list[int]


@torch.inference_mode()
def run(encoder: GeneratedEncoder, ids: Sequence[int], steps: int) -> Plain:
    model, ids, states, logits = encoder.backbone.model, list(ids), [], []
    for _ in range(steps):
        states.append(model.base_model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1])
        logits.append(model.lm_head(states[-1]))
        ids.append(int(logits[-1].argmax()))
    return Plain(torch.stack(states), torch.stack(logits), ids[-steps:])


def kept(encoder: GeneratedEncoder, predicted: Sequence[int]) -> int:
    tokenizer = encoder.backbone.vocabulary.tokenizer
    ends = {encoder.backbone.vocabulary.eos_token_id, encoder.backbone.vocabulary.turn_end_id}
    for step, token in enumerate(predicted[:-1], start=1):
        text = tokenizer.decode([token])
        ended = {
            "cap": False,
            "quote": '"' in text or token in ends,
            "cap-then-cut": text == '"' or token in tokenizer.all_special_ids,
        }
        if ended[encoder.config.stop]:
            return step
    return len(predicted)


def assert_as_described(encoder: GeneratedEncoder, actual: Representations, most: Sequence[int] | None = None) -> None:
    for row, text in enumerate(encoder.preparer.prepare_queries(TEXTS, most)):
        plain = run(encoder, text.input_ids.tolist(), encoder.config.max_tokens if most is None else most[row])
        count = kept(encoder, plain.predicted)
        own = slice(actual.offsets[row], actual.offsets[row + 1])
        assert own.stop - own.start == count
        expected_MH = torch.nn.functional.normalize(plain.states_MH[:count], dim=-1).numpy()
        np.testing.assert_allclose(actual.vectors_MH[own].astype(np.float32), expected_MH, atol=1e-3)
        weights_V = torch.log1p(torch.relu(plain.logits_MV[:count].amax(0))).numpy()
        words = text.content_ids[weights_V[text.content_ids] > 0]
        assert impacts(actual, row).ids.tolist() == words.tolist()
        np.testing.assert_allclose(impacts(actual, row).weights, weights_V[words], atol=1e-5)
        best_M = [-1] * count
        if len(text.content_ids):
            best_M = text.content_ids[plain.logits_MV[:count, text.content_ids].argmax(-1).numpy()].tolist()
        assert actual.slot_tokens[own].tolist() == best_M


def close_some_with(encoder: GeneratedEncoder, piece: str) -> list[int]:
    """Make some texts decode `piece` at different steps; return the number of steps before it."""
    token = encoder.backbone.vocabulary.tokenizer(piece, add_special_tokens=False)["input_ids"]
    assert len(token) == 1
    sequences = [text.input_ids.tolist() for text in encoder.preparer.prepare_queries(TEXTS)]
    predicted = [run(encoder, ids, N).predicted for ids in sequences]

    def counts(candidate: int) -> list[int]:
        return [row.index(candidate) + 1 if candidate in row[:-1] else N for row in predicted]

    chosen = max({token for row in predicted for token in row[:-1]}, key=lambda each: (len(set(counts(each))), each))
    with torch.no_grad():
        head_VH = encoder.backbone.model.lm_head.weight
        head_VH[[chosen, *token]] = head_VH[[*token, chosen]].clone()
    expected = counts(chosen)
    assert len(set(expected)) >= 3, "texts that stop at several steps"
    assert expected.count(N) < len(TEXTS)
    return expected


def lengths(actual: Representations) -> list[int]:
    counts: list[int] = np.diff(actual.offsets).tolist()
    return counts


@pytest.mark.parametrize(("family", "piece"), [("qwen2", '"'), ("qwen2", '".'), ("llama3", "end")])
def test_decoding_stops_at_the_closing_quote(family: str, piece: str, make_generated: Make[GeneratedEncoder]) -> None:
    encoder = make_generated(family, max_tokens=N)
    expected = close_some_with(encoder, ENDS[family] if piece == "end" else piece)
    actual = encoder.encode_queries(TEXTS)
    assert lengths(actual) == expected
    assert_as_described(encoder, actual)
    alone = [encoder.encode_queries([text]) for text in TEXTS]
    assert_close(actual, Representations.concatenate(alone))


@pytest.mark.parametrize(
    ("family", "piece", "cuts"), [("llama3", '"', True), ("qwen2", "end", True), ("qwen2", ' "', False)]
)
def test_cap_then_cut(family: str, piece: str, cuts: bool, make_generated: Make[GeneratedEncoder]) -> None:
    encoder = make_generated(family, max_tokens=N, stop="cap-then-cut")
    expected = close_some_with(encoder, ENDS[family] if piece == "end" else piece)
    actual = encoder.encode_queries(TEXTS)
    assert lengths(actual) == (expected if cuts else [N] * len(TEXTS))
    assert_as_described(encoder, actual)


def test_a_batch_may_mix_sides(make_generated: Make[GeneratedEncoder]) -> None:
    encoder = make_generated("qwen2", max_tokens=3)
    queries = encoder.preparer.prepare_queries(TEXTS[:3])
    passages = encoder.preparer.prepare_passages([""] * 3, TEXTS[:3])
    mixed = encoder.encode([text for pair in zip(passages, queries, strict=True) for text in pair])
    assert_close(mixed.take(np.array([0, 2, 4])), encoder.encode(passages))
    assert_close(mixed.take(np.array([1, 3, 5])), encoder.encode(queries))


def test_a_querys_budget_limits_its_tokens(make_generated: Make[GeneratedEncoder]) -> None:
    encoder = make_generated("llama3", max_tokens=2)
    most = [1, 4, 2, 6, 1, 3, 5, 2]
    actual = encoder.encode_queries(TEXTS, most)
    assert lengths(actual) == most
    assert_as_described(encoder, actual, most)


def test_space_variants_and_top_k(make_generated: Make[GeneratedEncoder]) -> None:
    text = "honey bees store water in winter"
    fold = ContentWordsConfig(fold_space_variants=True)
    encoder = make_generated("qwen2", max_tokens=3, stop="cap", content_words=fold)
    (ready,) = encoder.preparer.prepare_queries([text])
    weights_V = torch.log1p(torch.relu(run(encoder, ready.input_ids.tolist(), 3).logits_MV.amax(0))).numpy()
    larger_T = np.maximum(weights_V[ready.content_ids], weights_V[ready.variant_ids])
    assert (larger_T > weights_V[ready.content_ids]).any()
    actual = encoder.encode_queries([text])
    assert actual.impact_ids.tolist() == ready.content_ids[larger_T > 0].tolist()
    np.testing.assert_allclose(actual.impact_weights, larger_T[larger_T > 0], atol=1e-5)
    two = make_generated(
        "qwen2", max_tokens=3, stop="cap", content_words=fold, sparse_topk=2, sparse_rounding="round100"
    ).encode_queries([text])
    heaviest = np.sort(np.argsort(-larger_T, kind="stable")[:2])
    assert two.impact_ids.tolist() == ready.content_ids[heaviest].tolist()
    np.testing.assert_array_equal(two.impact_weights, np.rint(larger_T[heaviest] * 100))

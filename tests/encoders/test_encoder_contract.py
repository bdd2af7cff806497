"""The contract of encoders, for every method over every backbone.

Legend: M slots of all texts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import BackboneConfig, GeneratedRetriever, MaskedRetriever
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import (
    PACKED,
    TEXTS,
    FolderOf,
    Make,
    assert_close,
    assert_identical,
    encoded,
    impacts,
    load_case,
    sequences,
)

BUDGETS = [1, 4, 2, 7, 1, 3, 5, 2]


def test_a_text_does_not_depend_on_its_batch(encoder: Encoder) -> None:
    alone = [encoder.encode_queries([text]) for text in TEXTS]
    assert_close(encoded(encoder), Representations.concatenate(alone))


@pytest.mark.parametrize("case", PACKED)
def test_packed_texts_equal_padded_ones(case: str, encoder_of: Callable[[str], Encoder]) -> None:
    packed, padded = encoder_of(case), encoder_of(PACKED[case])
    assert packed.is_packed
    assert not padded.is_packed
    assert_close(encoded(packed), encoded(padded))
    budgets = [1] * (len(TEXTS) - 3) + [2, 1, 2] if "masked" in case else None
    assert_close(packed.encode_queries(TEXTS, budgets), padded.encode_queries(TEXTS, budgets))


def test_encoding_twice_gives_the_same_bits(encoder: Encoder) -> None:
    first = encoded(encoder)
    assert_identical(encoder.encode_queries(TEXTS), first)


@pytest.mark.parametrize("tokens", [1, 150])
def test_results_do_not_depend_on_batch_sizes(encoder: Encoder, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encoded(encoder)
    monkeypatch.setattr(encoder, "tokens_per_batch", tokens)
    prepared = encoder.preparer.prepare_queries(TEXTS)
    result = encoder.submit(prepared).result()
    assert_close(result.parts[0], expected)
    lengths = [len(text.input_ids) for text in prepared]
    assert result.tokens == sum(lengths)
    if tokens == 1 or encoder.is_packed:
        assert result.padded_tokens == sum(lengths)


def test_shapes_and_types(encoder: Encoder) -> None:
    actual = encoder.encode_passages([""] * len(TEXTS), TEXTS)
    assert len(actual) == len(TEXTS)
    assert actual.vectors_MH.dtype == np.float16
    assert actual.vectors_MH.shape == (actual.offsets[-1], encoder.facts.hidden_size)
    counts, most = np.diff(actual.offsets), encoder.config.max_vectors("passage")
    assert actual.offsets[0] == 0
    assert 1 <= counts.min() <= counts.max() <= most
    if encoder.config.method != "generated" and not encoder.config.has_token_vectors:
        assert counts.min() == most
    assert actual.slot_tokens.shape == (actual.offsets[-1],)
    assert actual.impact_offsets.shape == (len(TEXTS) + 1,)
    assert actual.impact_offsets[-1] == len(actual.impact_ids) == len(actual.impact_weights)
    assert {actual.offsets.dtype, actual.impact_offsets.dtype} == {np.dtype(np.int64)}
    assert {actual.slot_tokens.dtype, actual.impact_ids.dtype, actual.n_tokens.dtype} == {np.dtype(np.int32)}
    assert actual.impact_weights.dtype == np.float32


def test_impacts_are_sorted_positive_and_the_texts_own(encoder: Encoder) -> None:
    actual = encoded(encoder)
    for row, text in enumerate(encoder.preparer.prepare_queries(TEXTS)):
        ids, weights = impacts(actual, row)
        assert (np.diff(ids) > 0).all()
        assert (weights > 0).all()
        assert set(ids.tolist()) <= set(text.content_ids.tolist())
    assert (len(actual.impact_ids) > 0) == ("sparse" in encoder.config.modes)


def test_slot_tokens_are_content_words_of_the_text(masked: MaskedEncoder) -> None:
    actual = encoded(masked)
    for row, text in enumerate(masked.preparer.prepare_queries(TEXTS)):
        own = set(actual.slot_tokens[actual.offsets[row] : actual.offsets[row + 1]].tolist())
        assert own <= set(text.content_ids.tolist()) if len(text.content_ids) else own == {-1}


def test_the_slots_of_a_text_differ(masked: MaskedEncoder) -> None:
    vectors_MH = masked.encode_queries(TEXTS[:1]).vectors_MH.astype(np.float32)
    scores_MM = vectors_MH @ vectors_MH.T
    assert scores_MM[~np.eye(len(scores_MM), dtype=bool)].max() < 0.999


def test_no_texts(encoder: Encoder) -> None:
    for actual in (encoder.encode_queries([]), encoder.encode_passages([], []), encoder.encode_queries([], [])):
        assert len(actual) == 0
        assert actual.vectors_MH.shape == (0, encoder.facts.hidden_size)
    some = encoder.encode_queries(["river"])
    assert_identical(Representations.concatenate([encoder.encode_queries([]), some]), some)


def test_texts_without_words_have_vectors_and_no_impacts(encoder: Encoder) -> None:
    actual = encoder.encode_queries(["", "   ", "the of and"])
    assert np.isfinite(actual.vectors_MH).all()
    assert actual.impact_offsets.tolist() == [0, 0, 0, 0]
    assert (actual.slot_tokens == -1).all()


@pytest.mark.parametrize(
    "case", ["masked-dream", "masked-bert-pooling", "pooled-llada", "tokens-qwen2", "installed-bert"]
)
@pytest.mark.usefixtures("own_package")
def test_recorded_passes_change_nothing(case: str, encoder_of: Callable[[str], Encoder], folder_of: FolderOf) -> None:
    recorded = load_case(case, folder_of)
    if recorded.can_record:
        recorded.record_passes()
        assert_close(recorded.encode_queries(TEXTS), encoded(encoder_of(case)))
        return
    with pytest.raises(ValueError, match="recorded"):
        recorded.record_passes()


def test_mixed_budgets_equal_each_query_alone(masked: MaskedEncoder) -> None:
    together = masked.encode_queries(TEXTS, BUDGETS)
    assert np.diff(together.offsets).tolist() == BUDGETS
    alone = [masked.encode_queries([text], [slots]) for text, slots in zip(TEXTS, BUDGETS, strict=True)]
    assert_close(together, Representations.concatenate(alone))


def test_a_querys_budget_replaces_the_configured_one(make_masked: Make[MaskedEncoder]) -> None:
    asked = make_masked("llada", budget=Budget(1, 1)).encode_queries(TEXTS, [5] * len(TEXTS))
    assert_identical(asked, make_masked("llada", budget=Budget(5, 9)).encode_queries(TEXTS))


def test_encoders_without_slots_ignore_budgets(encoder: Encoder) -> None:
    actual = encoder.encode_queries(["river", "honey"], [1, 3])
    own = np.diff(encoder.encode_queries(["river", "honey"]).offsets).tolist()
    assert np.diff(actual.offsets).tolist() == ([1, 3] if encoder.config.has_query_budget else own)


def test_bad_budgets_are_refused(encoder: Encoder) -> None:
    for wrong in ([0, 1], [2, -1]):
        with pytest.raises(ValueError, match="at least 1"):
            encoder.encode_queries(["river", "honey"], wrong)
    for wrong in ([1], [1, 2, 3], []):
        with pytest.raises(ValueError, match=f"2 queries but {len(wrong)} budgets"):
            encoder.encode_queries(["river", "honey"], wrong)


def test_a_backbone_without_a_mask_token_is_refused(folder_of: FolderOf) -> None:
    config = MaskedRetriever(backbone=BackboneConfig(source=str(folder_of("qwen2")), dtype="float32"))
    with pytest.raises(ValueError, match="no mask token"):
        load_encoder(config, "cpu")
    with pytest.raises(ValueError, match="no mask token"):
        load_preparer(config)


def test_generating_needs_a_causal_backbone(folder_of: FolderOf) -> None:
    config = GeneratedRetriever(backbone=BackboneConfig(source=str(folder_of("dream")), dtype="float32"))
    with pytest.raises(ValueError, match="family 'Dream' is not causal"):
        load_encoder(config, "cpu")


def test_preparing_needs_no_weights(encoder: Encoder) -> None:
    prepared = load_preparer(encoder.config).prepare_queries(TEXTS)
    assert [text.input_ids.tolist() for text in prepared] == sequences(encoder, list(TEXTS))
    assert_identical(encoder.encode(prepared), encoded(encoder))

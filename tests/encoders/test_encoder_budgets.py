"""K_q of each query, K_p of all passages, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import BackboneConfig, MaskedRetriever
from diffretriever.vectors.representations import Representations
from tests.encoders.encoder_cases import TEXTS, FolderOf, Make, assert_close, assert_identical, encoded, sequences

BUDGETS = [1, 4, 2, 7, 1, 3, 5, 2]


def test_mixed_budgets_equal_each_query_alone(masked: MaskedEncoder) -> None:
    together = masked.encode_queries(TEXTS, BUDGETS)
    assert np.diff(together.offsets).tolist() == BUDGETS
    alone = [masked.encode_queries([text], [slots]) for text, slots in zip(TEXTS, BUDGETS, strict=True)]
    assert_close(together, Representations.concatenate(alone))


def test_a_querys_budget_replaces_the_configured_one(make_masked: Make[MaskedEncoder]) -> None:
    asked = make_masked("llada", budget=Budget(1, 1)).encode_queries(TEXTS, [5] * len(TEXTS))
    assert_identical(asked, make_masked("llada", budget=Budget(5, 9)).encode_queries(TEXTS))


def test_encoders_without_slots_ignore_budgets(encoder: Encoder) -> None:
    found = encoder.encode_queries(["river", "honey"], [1, 3])
    own = np.diff(encoder.encode_queries(["river", "honey"]).offsets).tolist()
    assert np.diff(found.offsets).tolist() == ([1, 3] if encoder.config.has_query_budget else own)


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


def test_preparing_needs_no_weights(encoder: Encoder) -> None:
    prepared = load_preparer(encoder.config).prepare_queries(TEXTS)
    assert [text.input_ids.tolist() for text in prepared] == sequences(encoder, list(TEXTS))
    assert_identical(encoder.encode(prepared), encoded(encoder))

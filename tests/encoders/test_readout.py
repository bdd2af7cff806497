"""Impacts of logits (Eq. 3) by hand, and stored vectors read as words, against the whole vocabulary's logits.

Legend: M vectors, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch

from diffretriever.encoders.base import BackboneEncoder, Encoder
from diffretriever.encoders.logit_lens import readable_entries
from diffretriever.encoders.readout import keep_topk, pooled_impacts, quantise
from tests.encoders.encoder_cases import TEXTS


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [("none", [0.128, 0.125, 0.004]), ("trunc100", [12.0, 12.0, 0.0]), ("round100", [13.0, 12.0, 0.0])],
)
def test_quantise(rounding: Literal["none", "trunc100", "round100"], expected: list[float]) -> None:
    values = quantise(np.array([0.128, 0.125, 0.004], dtype=np.float32), rounding)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array(expected, dtype=np.float32))


@pytest.mark.parametrize(
    ("weights", "k", "kept"),
    [([1, 3, 1, 2], 3, [2, 5, 9]), ([1, 3, 1, 2], 4, [2, 5, 7, 9]), ([2, math.nan, 1, 0], 2, [2, 5])],
)
def test_the_heaviest_impacts_are_kept_in_the_order_of_ids(weights: list[float], k: int, kept: list[int]) -> None:
    """Ties keep the smaller id; NaN is always kept."""
    ids = np.array([2, 5, 7, 9])
    found_ids, found_weights = keep_topk(ids, np.array(weights, np.float32), k)
    assert found_ids.tolist() == kept
    np.testing.assert_array_equal(found_weights, np.array(weights, np.float32)[np.isin(ids, kept)])


def test_impacts_by_hand() -> None:
    """log(1 + ReLU), max-pooled over valid slots, times the word weights."""
    logits = torch.tensor([[[-3.0, math.e - 1], [0.0, 0.0], [9.0, 9.0]]]).repeat(2, 1, 1)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    assert pooled_impacts(logits, valid, None).tolist() == [[0.0, pytest.approx(1.0)], [0.0, 0.0]]
    assert pooled_impacts(logits, valid, torch.tensor([[2.0, 0.5]])).tolist()[0] == [0.0, pytest.approx(0.5)]


@pytest.mark.parametrize(
    ("texts", "readable"),
    [
        (["[CLS]", "dog", "##ing", "an", "3rd", "Water", "don't", "élan", "蜂蜜", "蜂", "[unused1]"], [5, 1, 7, 8]),
        (
            [" dog", "dog", "Dog", "ing", "<|end|>", " the", "\ufffd", "蜂蜜", " ", "", "été", " Cat"],
            [0, 1, 2, 5, 7, 10, 11],
        ),
        ([], []),
    ],
)
def test_readable_entries_are_words(texts: list[str], readable: list[int]) -> None:
    assert readable_entries(texts, set()) == sorted(readable)
    assert readable_entries(["mask", "dog"], {0}) == [1], "special tokens are not words"


def plain(encoder: BackboneEncoder, vectors_MH: np.ndarray, words: int) -> list[dict[str, float]]:
    """Word → its strongest logit, for the strongest words of each vector."""
    tokenizer = encoder.backbone.vocabulary.tokenizer
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    entries = readable_entries(texts, set(tokenizer.all_special_ids))
    actual = []
    with torch.inference_mode():
        logits_MV = encoder.backbone.logits_of(torch.tensor(vectors_MH)).float()
    for logits_V in logits_MV.tolist():
        best: dict[str, float] = {}
        for entry in sorted(entries, key=lambda entry: -logits_V[entry]):
            best.setdefault(texts[entry].strip().casefold(), logits_V[entry])
        actual.append(dict(list(best.items())[:words]))
    return actual


def test_readings_are_the_strongest_words_of_all(encoder: Encoder) -> None:
    vectors_MH = encoder.encode_passages([""] * 3, TEXTS[:3]).vectors_MH
    if not encoder.config.is_readable:
        with pytest.raises(ValueError, match="only masked, generated and pooled retrievers"):
            encoder.read(vectors_MH)
        return
    assert isinstance(encoder, BackboneEncoder)
    for words in (1, 5):
        readings = encoder.read(vectors_MH, words)
        assert len(readings) == len(vectors_MH)
        for reading, expected in zip(readings, plain(encoder, vectors_MH, words), strict=True):
            assert [each.logit for each in reading] == pytest.approx(list(expected.values()), abs=1e-4)
            assert len({each.word.casefold() for each in reading}) == words
    assert encoder.read(vectors_MH[:0]) == []

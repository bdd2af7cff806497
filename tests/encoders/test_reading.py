"""Stored vectors read as words: of every encoder whose config says so, against the whole vocabulary's logits.

Legend: M vectors, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from diffretriever.encoders.base import BackboneEncoder, Encoder
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.reading import readable_entries
from diffretriever.encoders.readout import content_ids
from tests.encoders.encoder_cases import TEXTS, Make


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
def test_what_people_read_as_words(texts: list[str], readable: list[int]) -> None:
    assert readable_entries(texts, set()) == sorted(readable)


def test_special_tokens_are_no_words() -> None:
    assert readable_entries(["mask", "dog"], {0}) == [1]


def plain(encoder: BackboneEncoder, vectors_MH: np.ndarray, words: int) -> list[dict[str, float]]:
    """Word → its strongest logit, for the strongest words of each vector."""
    tokenizer = encoder.backbone.vocabulary.tokenizer
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    entries = readable_entries(texts, set(tokenizer.all_special_ids))
    found = []
    with torch.inference_mode():
        logits_MV = encoder.backbone.logits_of(torch.tensor(vectors_MH)).float()
    for logits_V in logits_MV.tolist():
        best: dict[str, float] = {}
        for entry in sorted(entries, key=lambda entry: -logits_V[entry]):
            best.setdefault(texts[entry].strip().casefold(), logits_V[entry])
        found.append(dict(list(best.items())[:words]))
    return found


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


def test_many_vectors_are_read_as_few_are(encoder_of: Callable[[str], Encoder]) -> None:
    encoder = encoder_of("masked-dream")
    vectors_MH = np.repeat(encoder.encode_queries(["honey", "river"]).vectors_MH, 70, axis=0)
    readings = encoder.read(vectors_MH, 4)
    assert len(readings) == len(vectors_MH) == 280
    for number, reading in enumerate(readings):
        expected = [each.logit for each in readings[number // 70 * 70]]
        assert [each.logit for each in reading] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["dream", "bert", "modernbert"])
def test_slots_say_what_the_model_predicts_there(family: str, make_masked: Make[MaskedEncoder]) -> None:
    """By the model's own logits at the slots, from which nothing stored is made."""
    encoder = make_masked(family, budget="q3p4")
    prepared = encoder.preparer.prepare_passages(["", ""], ["honey bees store water in winter", "river"])
    batch = encoder.masked_batch(prepared, content_ids(prepared, encoder.config).gathered_BG)
    with torch.inference_mode():
        _, logits_BKV, _ = encoder._read(batch, None)
    readings = encoder.read(encoder.encode(prepared).vectors_MH, 5)
    tokenizer = encoder.backbone.vocabulary.tokenizer
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    entries = readable_entries(texts, set(tokenizer.all_special_ids))
    forms = {texts[entry].strip().casefold() for entry in entries}
    for reading, logits_V in zip(readings, logits_BKV.flatten(0, 1).float(), strict=True):
        strongest: dict[str, float] = {}
        for entry in entries:
            word = texts[entry].strip().casefold()
            strongest[word] = max(strongest.get(word, -np.inf), float(logits_V[entry]))
        tolerance = 2e-3 * float(logits_V.std())
        expected = sorted(strongest.values(), reverse=True)[: len(reading)]
        assert [each.logit for each in reading] == pytest.approx(expected, abs=tolerance, rel=2e-3)
        assert {each.word.casefold() for each in reading} <= forms

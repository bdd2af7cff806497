"""Stored vectors read as words: of every encoder whose config says so, against the whole vocabulary's logits.

Legend: M vectors, H hidden size, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffretriever.encoders.base import BackboneEncoder, Encoder
from diffretriever.encoders.reading import readable_entries
from tests.encoders.encoder_cases import TEXTS


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
    assert readable_entries(["mask", "dog"], {0}) == [1], "special tokens are not words"


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

"""Space variants beside subwords and unknown words."""

from __future__ import annotations

from typing import Any

from diffretriever.encoders.preparer import ContentWords
from diffretriever.schemas.retriever import ContentWordsConfig


class PartsTokenizer:
    """Known words are one token, with or without a space before them; others fall into two parts."""

    unk_token_id = 0

    def __init__(self, *words: str) -> None:
        self.ids = {word: number for number, word in enumerate(["[UNK]", *words])}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        if text in self.ids:
            return {"input_ids": [self.ids[text]]}
        bare = text.strip()
        return {"input_ids": [self.ids.get(part, 0) for part in (bare[:3], bare[3:]) if part]}


def pairs(text: str, tokenizer: PartsTokenizer, **config: bool) -> dict[int, int]:
    words = ContentWords(tokenizer, ContentWordsConfig(fold_space_variants=True, **config))
    return dict(zip(*(ids.tolist() for ids in words(text)), strict=True))


def test_unknown_words_have_no_variant() -> None:
    assert pairs("cat", PartsTokenizer("dog")) == {}
    assert pairs("cat", PartsTokenizer("dog"), subwords=True) == {}


def test_an_unknown_word_counts_by_its_known_variant() -> None:
    tokenizer = PartsTokenizer(" cat")
    assert pairs("cat", tokenizer) == {tokenizer.ids[" cat"]: tokenizer.ids[" cat"]}


def test_a_word_that_is_a_fragment_too_keeps_its_variant() -> None:
    """Whichever comes first: the order of a set changes from process to process, so many sets are tried."""
    tokenizer = PartsTokenizer("dog", " dog")
    for number in range(20):
        found = pairs(f"dog dog{number}", tokenizer, subwords=True)
        assert found == {tokenizer.ids["dog"]: tokenizer.ids[" dog"]}

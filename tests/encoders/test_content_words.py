"""The content-word filter on quotes, contractions, empty text, subwords and space variants."""

from __future__ import annotations

from typing import Any

from diffretriever.encoders.preparer import ContentWords
from diffretriever.schemas.retriever import ContentWordsConfig


class WordTokenizer:
    """A vocabulary of whole words, with and without a leading space; other words fall into letters."""

    unk_token_id = 0

    def __init__(self, *words: str) -> None:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        self.ids = {word: number for number, word in enumerate(["", *letters, *words])}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        if text in self.ids:
            return {"input_ids": [self.ids[text]]}
        return {"input_ids": [self.ids.get(letter, 0) for letter in text]}


def words(text: str, tokenizer: WordTokenizer, **config: bool) -> list[str]:
    names = {number: word for word, number in tokenizer.ids.items()}
    ids, _ = ContentWords(tokenizer, ContentWordsConfig(**config))(text)
    assert list(ids) == sorted(set(ids.tolist()))
    return [names[i] for i in ids.tolist()]


def test_stop_words_and_punctuation_are_removed() -> None:
    tokenizer = WordTokenizer("dog", "runs", "the", "don")
    assert words("The DOG -- it's `runs`; don't!", tokenizer) == ["dog", "runs"]


def test_fragments_are_removed_as_in_the_paper_or_kept_as_in_the_code() -> None:
    tokenizer = WordTokenizer("dog")
    assert words("dog cab", tokenizer) == ["dog"]
    assert words("dog cab", tokenizer, subwords=True) == ["a", "b", "c", "dog"]


def test_space_variants_fold_into_the_word() -> None:
    tokenizer = WordTokenizer("dog", " dog", " cat")
    ids, variants = ContentWords(tokenizer, ContentWordsConfig(fold_space_variants=True))("dog cat")
    pairs = dict(zip(ids.tolist(), variants.tolist(), strict=True))
    assert pairs == {
        tokenizer.ids["dog"]: tokenizer.ids[" dog"],
        tokenizer.ids[" cat"]: tokenizer.ids[" cat"],
    }


def test_a_word_that_is_a_fragment_too_keeps_its_variant() -> None:
    """Sets have another order in each process, so many words are tried."""
    tokenizer = WordTokenizer(" b")
    config = ContentWordsConfig(fold_space_variants=True, subwords=True)
    for number in range(20):
        ids, variants = ContentWords(tokenizer, config)(f"b zb{number}")
        assert dict(zip(ids.tolist(), variants.tolist(), strict=True))[tokenizer.ids["b"]] == tokenizer.ids[" b"]

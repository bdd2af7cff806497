"""The content-word filter: which vocabulary entries a text's sparse representation may use (paper §3.3)."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from schemas.retriever_parts import ContentWordsConfig

_WORD = re.compile(r"[^\W_]+")


@cache
def stop_words() -> frozenset[str]:
    """Return the shipped English stop words, lower case."""
    lines = files(__package__).joinpath("stopwords.txt").read_text("utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


class ContentWords:
    """Maps a text to the token ids of its content words.

    A content word is a lower-cased run of letters and digits that is no stop word. By default only words that are
    one vocabulary entry count: the paper removes subword fragments.
    """

    def __init__(self, tokenizer: Any, config: ContentWordsConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._known: dict[str, tuple[tuple[int, int], ...]] = {}

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return `ids` and `variants`, int32 of equal length, ids ascending and distinct.

        The weight of `ids[i]` is the larger of the weights of `ids[i]` and `variants[i]`, which differ only where
        the word has another form with a leading space and `fold_space_variants` is on.
        """
        pairs: dict[int, int] = {}
        for word in set(_WORD.findall(text.lower())) - stop_words():
            for own, variant in self._pairs(word):
                # A word that is also a fragment of another keeps its variant, whichever of them comes first.
                pairs[own] = variant if variant != own else pairs.get(own, own)
        ids = np.fromiter(sorted(pairs), dtype=np.int32, count=len(pairs))
        return ids, np.fromiter((pairs[i] for i in ids.tolist()), dtype=np.int32, count=len(pairs))

    def _pairs(self, word: str) -> tuple[tuple[int, int], ...]:
        if word not in self._known:
            if len(self._known) > 1_000_000:
                self._known.clear()
            self._known[word] = self._look_up(word)
        return self._known[word]

    def _look_up(self, word: str) -> tuple[tuple[int, int], ...]:
        ids = self._encode(word)
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        spaced = self._encode(f" {word}") if self._config.fold_space_variants else []
        if len(spaced) == 1 and spaced[0] != unknown:
            return ((ids[0] if len(ids) == 1 and ids[0] != unknown else spaced[0], spaced[0]),)
        if not self._config.subwords and len(ids) != 1:
            return ()
        return tuple((i, i) for i in ids if i != unknown)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

"""Preparing texts for the methods without a retrieval prompt: a prefix, the text, and special tokens around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diffretriever.encoders.preparer import NO_IDS, PreparedText, Preparer
from diffretriever.schemas.retriever import PrefixedRetriever, Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary


class PrefixedPreparer(Preparer):
    """The tokenizer's own form of prefix and text, special tokens included."""

    def __init__(self, vocabulary: Vocabulary, config: PrefixedRetriever) -> None:
        super().__init__(vocabulary, config.text)
        self.config = config
        self._end: list[int] = []
        if config.append_eos:
            if vocabulary.eos_token_id is None:
                raise ValueError("append_eos: this backbone has no end-of-sequence token")
            self._end = [vocabulary.eos_token_id]

    def default_slots(self, side: Side) -> int:
        """Return 0: these texts have no slots."""
        return 0

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise; `length_semantics: total` counts prefix and special tokens, `text` does not.

        Raises:
            ValueError: prefix and special tokens leave no room for a text.
        """
        prefix = self.config.query_prefix if side == "query" else self.config.passage_prefix
        # The space that ends a prefix becomes part of the text's first word.
        (framed,) = self.vocabulary.tokenise([prefix.rstrip()], [self.vocabulary.max_length], special=True)
        framing = len(framed) + len(self._end)
        limit = self._limit(side) + (framing if self.text.length_semantics == "text" else 0)
        limit = min(limit, self.vocabulary.max_length)
        if limit <= framing:
            raise ValueError(
                f"no room for the text: prefix and special tokens take {framing} of {limit} tokens. "
                f"Raise the {side} limit."
            )
        limits = [limit - len(self._end)] * len(texts)
        rows = self.vocabulary.tokenise([prefix + text for text in texts], limits, special=True)
        # A tokenizer without special tokens makes nothing of an empty text: a pad then stands for it, as every text
        # has a vector.
        nothing = [self.vocabulary.pad_token_id]
        ids = [row + self._end or nothing for row in rows]
        counts = [len(row) + len(self._end) for row in rows]
        most = self.default_slots(side)
        return [PreparedText(np.array(i, np.int32), most, NO_IDS, NO_IDS, n) for i, n in zip(ids, counts, strict=True)]

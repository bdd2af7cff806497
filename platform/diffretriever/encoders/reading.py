"""Stored vectors read as words: which words of the whole vocabulary the output head gives most at their directions.

A slot's impacts and `slot_tokens` name words of the text alone; a reading names any. Its logits are those that the
model itself gave at the slot, up to the rounding of the stored vector: see `Backbone.logits_of`. Of mean pooling they
are those of a state in the direction of the mean, and rank words as the mean of all tokens' logits does, where the head
is linear. Vectors that a codec has decoded are read as they are searched.

Legend: m vectors of a batch, H hidden size, R entries that can be read, C the strongest of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.backbones.device import moved, to_host
from diffretriever.schemas.serve import Reading, ReadWord

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone

_MAYBE_EQUAL = 64
"""Entries looked at beyond those needed: in half precision several have the same logit, of which the first one counts,
whichever the device names."""
_LEAST_LETTERS, _LEAST_ASCII_LETTERS = 2, 3


class VectorReader:
    """Reads vectors of one backbone. What counts as a word is said by `readable_entries`."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        tokenizer = backbone.vocabulary.tokenizer
        texts = tokenizer.batch_decode([[token] for token in range(min(len(tokenizer), backbone.vocab_size))])
        entries = readable_entries(texts, set(tokenizer.all_special_ids))
        self._entries_R = moved(torch.tensor(entries, dtype=torch.int64), backbone.device)
        self._texts = [texts[entry].strip() for entry in entries]
        self._most_forms = max(Counter(map(str.casefold, self._texts)).values(), default=0)

    def begin(self, vectors_mH: np.ndarray, words: int) -> Callable[[], list[Reading]]:
        """Have the device read a batch of vectors; return what makes their readings once the device is done.

        Args:
            vectors_mH: floating, few enough for their logits to be held at once.
            words: of a reading, at most.
        """
        # So many entries hold so many words, even where each is there in all its forms.
        count = min(words * self._most_forms + _MAYBE_EQUAL, len(self._texts))
        with torch.inference_mode():
            logits_mR = self._backbone.logits_of(torch.from_numpy(vectors_mH.astype(np.float32)))[:, self._entries_R]
            best = logits_mR.float().topk(count)
            logits_mC, entries_mC = to_host(best.values), to_host(best.indices)
        return lambda: [
            self._reading(logits, entries, words)
            for logits, entries in zip(logits_mC.tolist(), entries_mC.tolist(), strict=True)
        ]

    def _reading(self, logits: Sequence[float], entries: Sequence[int], words: int) -> Reading:
        strongest: dict[str, tuple[str, float]] = {}
        for logit, entry in sorted(zip(logits, entries, strict=True), key=lambda each: (-each[0], each[1])):
            strongest.setdefault(self._texts[entry].casefold(), (self._texts[entry], logit))
        return [ReadWord(word=text, logit=logit) for text, logit in islice(strongest.values(), words)]


def readable_entries(texts: Sequence[str], special: set[int]) -> list[int]:
    """Return which entries of a vocabulary people read as words, ascending.

    A word is three letters or more, two where they are not all ASCII, and nothing else: no digits, signs, special
    tokens or `##` pieces. Where a vocabulary writes the space before a word as part of the entry (` dog`), an entry of
    ASCII letters without one counts only if there is one with it: others are pieces of words. Forms of a word that
    differ by that space or by capitals count as one in a reading, by the strongest of them. Stop words are words.

    Args:
        texts: what each entry decodes to.
        special: entries that are special tokens.
    """
    wordlike = {
        entry: text.strip() for entry, text in enumerate(texts) if entry not in special and _is_word(text.strip())
    }
    spaced = {word.casefold() for entry, word in wordlike.items() if texts[entry][0].isspace()}
    return [entry for entry, word in wordlike.items() if not spaced or not word.isascii() or word.casefold() in spaced]


def _is_word(text: str) -> bool:
    return text.isalpha() and len(text) >= (_LEAST_ASCII_LETTERS if text.isascii() else _LEAST_LETTERS)

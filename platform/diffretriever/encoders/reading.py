"""Stored vectors read as words: the words of the whole vocabulary that the output head predicts at their directions.

A slot's impacts and `slot_tokens` are words of the text alone; a reading has any. Its logits are those that the model
gave at the slot, up to the rounding of the stored vector: see `Backbone.logits_of`. Of mean pooling they are those of a
state in the direction of the mean, and rank words as the mean of all tokens' logits does, if the head is linear.

Legend: m vectors of a batch, H hidden size, R entries that can be read, C the strongest of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.backbones.device import moved, to_host
from diffretriever.schemas.serve import Reading, ReadWord

if TYPE_CHECKING:
    from diffretriever.backbones import Backbone

_MAYBE_EQUAL = 64
"""Entries read beyond those needed: in half precision several have the same logit, of which the first one counts,
whichever the device returns."""
_LEAST_LETTERS, _LEAST_ASCII_LETTERS = 2, 3


class VectorReader:
    """Reads vectors of one backbone. `readable_entries` defines a word."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        tokenizer = backbone.vocabulary.tokenizer
        texts = tokenizer.batch_decode([[token] for token in range(min(len(tokenizer), backbone.vocab_size))])
        entries = readable_entries(texts, set(tokenizer.all_special_ids))
        self._entries_R = moved(torch.tensor(entries, dtype=torch.int64), backbone.device)
        self._texts = [texts[entry].strip() for entry in entries]
        self._most_forms = max(Counter(map(str.casefold, self._texts)).values(), default=0)

    def compute(self, vectors_mH: np.ndarray, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the logits [m, C] and numbers of the strongest entries; the device's half of `readings`."""
        # This number of entries contains that number of words, even where each is there in all its forms.
        count = min(words * self._most_forms + _MAYBE_EQUAL, len(self._texts))
        with torch.inference_mode():
            logits_mR = self._backbone.logits_of(torch.from_numpy(vectors_mH.astype(np.float32)))[:, self._entries_R]
            best = logits_mR.float().topk(count)
            return to_host(best.values), to_host(best.indices)

    def readings(self, logits_mC: torch.Tensor, entries_mC: torch.Tensor, words: int) -> list[Reading]:
        """Return the readings of the results of `compute`."""
        found = []
        for logits, entries in zip(logits_mC.tolist(), entries_mC.tolist(), strict=True):
            strongest: dict[str, tuple[str, float]] = {}
            for logit, entry in sorted(zip(logits, entries, strict=True), key=lambda each: (-each[0], each[1])):
                strongest.setdefault(self._texts[entry].casefold(), (self._texts[entry], logit))
            found.append([ReadWord(word=text, logit=logit) for text, logit in islice(strongest.values(), words)])
        return found


def readable_entries(texts: Sequence[str], special: set[int]) -> list[int]:
    """Return the vocabulary entries that people read as words, ascending.

    A word is three letters or more, two where they are not all ASCII, and nothing else: no digits, signs, special
    tokens or `##` pieces. Where a vocabulary writes the space before a word as part of the entry (` dog`), an entry of
    ASCII letters without one counts only if there is one with it: others are pieces of words. Forms of a word that
    differ by that space or by capitals count as one in a reading, by the strongest of them. Stop words are words.
    """
    wordlike = {
        entry: text.strip() for entry, text in enumerate(texts) if entry not in special and _is_word(text.strip())
    }
    spaced = {word.casefold() for entry, word in wordlike.items() if texts[entry][0].isspace()}
    return [entry for entry, word in wordlike.items() if not spaced or not word.isascii() or word.casefold() in spaced]


def _is_word(text: str) -> bool:
    return text.isalpha() and len(text) >= (_LEAST_ASCII_LETTERS if text.isascii() else _LEAST_LETTERS)

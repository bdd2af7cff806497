"""Reads stored vectors as words: those that the output head predicts for them, from the whole vocabulary.

Impacts and `slot_tokens`, in contrast, contain only words of the text. The logits equal the model's at the slot, up to
the vector's rounding: see `Backbone.logits_of`.

Legend: m vectors of a batch, H hidden size, R readable entries, C the strongest of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffretriever.backbones.device import to_device, to_host
from diffretriever.schemas.serve import Reading, ReadWord

if TYPE_CHECKING:
    from diffretriever.backbones.base import Backbone

_POSSIBLE_TIES = 64
"""Extra entries: in half precision several may have the same logit, and the first one must be among them."""
_LEAST_LETTERS, _LEAST_ASCII_LETTERS = 2, 3


class LogitLens:
    """Reads vectors of one backbone as words; see `readable_entries`."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        tokenizer = backbone.vocabulary.tokenizer
        texts = tokenizer.batch_decode([[token] for token in range(min(len(tokenizer), backbone.vocab_size))])
        entries = readable_entries(texts, set(tokenizer.all_special_ids))
        self._entries_R = to_device(torch.tensor(entries, dtype=torch.int64), backbone.device)
        self._texts = [texts[entry].strip() for entry in entries]
        self._most_forms = max(Counter(map(str.casefold, self._texts)).values(), default=0)

    def top_logits(self, vectors_mH: np.ndarray, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [m, C] and indices [m, C] of the strongest entries, for `to_words`."""
        # Enough entries for `words` words, even if each appears in all its forms.
        count = min(words * self._most_forms + _POSSIBLE_TIES, len(self._texts))
        with torch.inference_mode():
            logits_mR = self._backbone.logits_of(torch.from_numpy(vectors_mH.astype(np.float32)))[:, self._entries_R]
            best = logits_mR.float().topk(count)
            return to_host(best.values), to_host(best.indices)

    def to_words(self, logits_mC: torch.Tensor, entries_mC: torch.Tensor, words: int) -> list[Reading]:
        """Return the readings of the results of `top_logits`."""
        readings = []
        for logits, entries in zip(logits_mC.tolist(), entries_mC.tolist(), strict=True):
            strongest: dict[str, tuple[str, float]] = {}
            for logit, entry in sorted(zip(logits, entries, strict=True), key=lambda pair: (-pair[0], pair[1])):
                strongest.setdefault(self._texts[entry].casefold(), (self._texts[entry], logit))
            readings.append([ReadWord(word=text, logit=logit) for text, logit in islice(strongest.values(), words)])
        return readings


def readable_entries(texts: Sequence[str], special: set[int]) -> list[int]:
    """Return the vocabulary entries that are words, ascending.

    A word consists of three or more letters, or two if they are not all ASCII. In vocabularies whose entries include
    the space before a word (` dog`), an ASCII entry without the space must also exist with it.
    """
    wordlike = {
        entry: text.strip() for entry, text in enumerate(texts) if entry not in special and _is_word(text.strip())
    }
    spaced = {word.casefold() for entry, word in wordlike.items() if texts[entry][0].isspace()}
    return [entry for entry, word in wordlike.items() if not spaced or not word.isascii() or word.casefold() in spaced]


def _is_word(text: str) -> bool:
    return text.isalpha() and len(text) >= (_LEAST_ASCII_LETTERS if text.isascii() else _LEAST_LETTERS)

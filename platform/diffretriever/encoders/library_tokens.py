"""Late interaction (ColBERT and its kin): which tokens of a text the model sees, and which have a vector.

Legend: B texts of a batch, L padded length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AddedToken

from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.library_preparer import TASKS, LibraryPreparer, Prompt
from diffretriever.encoders.library_rules import TokenRules
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.tensors import pad_right
from schemas.retriever import LibraryRetriever, Side


class TokenPreparer(LibraryPreparer):
    """Marker, text and expansion of late-interaction models.

    In its `PreparedText` values `content_ids` are the positions [K] in `input_ids` that have a vector, `slots` is K,
    and `n_tokens` counts the tokens that are attended to, which come first.
    """

    def __init__(self, config: LibraryRetriever, files: LibraryFiles) -> None:
        self.rules = TokenRules.read(files)
        super().__init__(config, files)
        self.rules.mask.resolve_with_tokenizer(self.vocabulary.tokenizer)

    def make_prompts(self, own: dict[Side, str | None]) -> dict[Side, Prompt]:
        """Return the prompts of both sides; markers among them become special tokens of the tokenizer."""
        self._register(list(self.rules.markers.values()))
        markers = {side: self.rules.markers.get(task, "") for side, task in TASKS.items()}
        # A folder may have a prompt beside the marker: the marker comes first.
        composed = {side: markers[side] + (own[side] or "").removeprefix(markers[side]) for side in TASKS}
        return super().make_prompts({**composed})

    def longest(self, side: Side) -> int:
        """Most tokens before expansion."""
        expansion = self.rules.expansion
        length = self.rules.lengths.get(TASKS[side], self.vocabulary.max_length)
        if side == "query" and expansion is not None:
            length = expansion.length if expansion.fixed else max(length, expansion.length)
        return min(self.vocabulary.max_length, length)

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise and expand, and choose the tokens that have a vector."""
        if not texts:
            return []
        rows = [np.array(row, np.int32) for row in self.token_rows(texts, side)]
        wholes = [self._expanded(row) if side == "query" else row for row in rows]
        ids_BL, real_BL = pad_right(wholes, 0)
        text_BL = (torch.arange(ids_BL.shape[1]) < torch.tensor([[len(row)] for row in rows])).long()
        attended_BL = real_BL if self.rules.expansion and self.rules.expansion.attended else text_BL
        features = {
            "input_ids": ids_BL,
            "attention_mask": attended_BL,
            "query_expansion_positions": real_BL > text_BL,
        }
        kept_BL = self.rules.mask(features, task=TASKS[side])["attention_mask"].bool().numpy()
        counts = attended_BL.sum(1).tolist()
        return [
            PreparedText(whole, int(kept.sum()), np.flatnonzero(kept).astype(np.int32), row[:0], n_tokens)
            for whole, row, kept, n_tokens in zip(wholes, rows, kept_BL, counts, strict=True)
        ]

    def _expanded(self, row: np.ndarray) -> np.ndarray:
        expansion = self.rules.expansion
        if expansion is None or len(row) >= expansion.length:
            return row
        tokenizer = self.vocabulary.tokenizer
        token = expansion.token
        ids = [tokenizer.mask_token_id, tokenizer.eos_token_id] if token is None else [tokenizer.get_vocab().get(token)]
        filling = next((i for i in ids if i is not None), None)
        if filling is None:
            raise ValueError(f"the tokenizer has no token {token or 'to mask or to end with'} to fill queries with")
        return np.concatenate([row, np.full(expansion.length - len(row), filling, np.int32)])

    def _register(self, markers: list[str]) -> None:
        """Make markers that are entries of the vocabulary single tokens, as they were in training."""
        tokenizer = self.vocabulary.tokenizer
        known = tokenizer.get_vocab()
        forms = [next((form for form in (marker, *marker.split()[:1]) if form in known), None) for marker in markers]
        split = [form for form in forms if form is not None and tokenizer.tokenize(form) != [form]]
        if split:
            added = [AddedToken(form, normalized=False, special=True) for form in split]
            tokenizer.add_special_tokens({"additional_special_tokens": added})

"""Impacts of passages and queries that nobody wrote, for measuring at sizes that no collection at hand has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from diffretriever.search.sparse.segment import Impacts
from schemas.base import Model

BATCH = 5_000
# Content words of real text: the r-th most frequent is drawn in proportion to 1 / (r + 50), so that the first is in a
# seventh of all passages of 59 words.
_RANK_SHIFT = 50
_QUERY_SEED = 1 << 40


class MadeUpImpacts(Model):
    """A collection; the same values give the same impacts, and a smaller collection is the beginning of a larger."""

    law: Literal["zipf", "uniform"]
    """How often a term is drawn."""
    passages: int
    """How many."""
    terms: int = 59
    """Different terms of a passage, about."""
    query_terms: int = 22
    """Different terms of a query, about."""
    vocab_size: int = 150_000
    """Terms to draw from."""

    def batches(self) -> Iterator[Impacts]:
        """Yield the passages, `BATCH` at a time."""
        for first in range(0, self.passages, BATCH):
            yield self._draw(min(BATCH, self.passages - first), self.terms, first)

    def queries(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return ids and weights of each of `count` queries."""
        ids, weights, offsets = self._draw(count, self.query_terms, _QUERY_SEED)
        return [(ids[offsets[i] : offsets[i + 1]], weights[offsets[i] : offsets[i + 1]]) for i in range(count)]

    def _draw(self, count: int, terms: int, seed: int) -> Impacts:
        rng = np.random.default_rng(seed)
        # A term drawn twice counts once.
        drawn = rng.random((count, terms + terms // 25))
        if self.law == "zipf":
            drawn = ((self.vocab_size / _RANK_SHIFT + 1) ** drawn - 1) * (_RANK_SHIFT / self.vocab_size)
        ranks = np.minimum((drawn * self.vocab_size).astype(np.int32), self.vocab_size - 1)
        # A tokenizer's ids are in no order of frequency.
        ids = np.random.default_rng(0).permutation(self.vocab_size).astype(np.int32)[ranks]
        ids.sort(axis=1)
        keep = np.diff(ids, axis=1, prepend=-1) > 0
        logits = rng.normal(6, 4, int(keep.sum())).clip(min=0.02)
        offsets = np.concatenate([[0], np.cumsum(keep.sum(axis=1))]).astype(np.int64)
        return ids[keep], np.log1p(logits).astype(np.float32), offsets

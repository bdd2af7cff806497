"""Impacts of a few terms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever, PooledRetriever
from diffretriever.vectors.representations import Representations

Bag: TypeAlias = dict[int, float]
Model: TypeAlias = dict[str, Bag]

HIDDEN, VOCAB = 2, 30
BACKBONE = {"source": "x", "dtype": "float32"}


def representations(bags: Iterable[Bag]) -> Representations:
    texts = list(bags)
    pairs = [pair for bag in texts for pair in sorted(bag.items())]
    return Representations(
        vectors_MH=np.tile(np.array([1, 0], np.float16), (len(texts), 1)),
        offsets=np.arange(len(texts) + 1, dtype=np.int64),
        slot_tokens=np.full(len(texts), -1, np.int32),
        impact_ids=np.array([i for i, _ in pairs], np.int32),
        impact_weights=np.array([w for _, w in pairs], np.float32),
        impact_offsets=np.cumsum([0, *map(len, texts)], dtype=np.int64),
        n_tokens=np.ones(len(texts), np.int32),
    )


def manifest(retriever: MaskedRetriever | PooledRetriever, vocab_size: int | None) -> IndexManifest:
    created = "2026-01-01T00:00:00+00:00"
    return IndexManifest(retriever=retriever, weights="w", hidden_size=HIDDEN, vocab_size=vocab_size, created=created)


def bags(count: int, seed: int) -> list[Bag]:
    """Draw bags whose weights are few, so that many passages tie, and now and then one of all kinds."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(count):
        terms = rng.choice(VOCAB - 5, rng.integers(0, 9), replace=False).tolist()
        coarse = rng.random() < 0.5
        drawn.append({t: float(rng.integers(1, 4) / 2 if coarse else rng.gamma(2)) for t in terms})
    return drawn

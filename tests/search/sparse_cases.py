"""Impacts of a few terms, and the BM25 scores of the library bm25s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import bm25s
import numpy as np

from diffretriever.collections import Passage
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever, PooledRetriever
from diffretriever.search.bm25 import analyse
from diffretriever.vectors.hits import Hit
from diffretriever.vectors.representations import Representations
from tests.index.index_cases import represented

Bag: TypeAlias = dict[int, float]
Model: TypeAlias = dict[str, Bag]

HIDDEN, VOCAB = 2, 30
BACKBONE = {"source": "x", "dtype": "float32"}


def representations(bags: Iterable[Bag]) -> Representations:
    texts = list(bags)
    return represented([np.eye(1, HIDDEN)] * len(texts), texts)


def by_library(passages: list[Passage], queries: list[str], top_k: int) -> list[list[Hit]]:
    """The library's own scores of one query at a time, sorted."""
    model = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    model.index(analyse([f"{p.title} {p.text}" for p in passages]), show_progress=False)
    hits: list[list[Hit]] = []
    for words in analyse(queries):
        in_passages = [word for word in words if word in model.vocab_dict]
        scores = model.get_scores(in_passages).tolist() if in_passages else []
        scored = [(p.id, score) for p, score in zip(passages, scores, strict=False) if score > 0]
        hits.append(sorted(scored, key=lambda hit: (-hit[1], hit[0]))[:top_k])
    return hits


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

"""Vectors that nobody's model made, as a real index: for measuring search at any size.

Legend: P passages of a block, K slots of a passage, Q queries, M slots of a query, H hidden size, C centroids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from diffretriever.collections import Passage
from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, beside, text_table, write_block
from diffretriever.schemas.base import Model
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever

BLOCK = 25_000
"""Passages drawn and written at once."""
_PASSAGES_PER_CENTROID = 100
_QUERY_SEED = 1 << 40


class MadeUpVectors(Model):
    """A collection; the same values give the same vectors."""

    passages: int
    """How many."""
    slots: int
    """K_p."""
    dims: int
    """H."""
    spread: Literal["clustered", "independent"]
    """`clustered`: a passage's slots share a component of their own and one with a hundred passages, and so do
    queries. `independent`: every vector is drawn alone, so that nothing but its codes says where a passage is."""
    query_slots: int = 4
    """K_q."""

    def write(self, uri: str) -> PassageIndex:
        """Write an index of one data file for each `BLOCK`."""
        index = PassageIndex.create(uri, self._manifest())
        committer = Committer(index)
        for first in range(0, self.passages, BLOCK):
            committer.commit({str(first): write_block(uri, self._table(first))}, [])
        return index

    def queries(self, count: int, seed: int = 0) -> Representations:
        """Draw queries; another seed gives others."""
        return _representations(self._draw(count, self.query_slots, _QUERY_SEED + seed))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the passages' vectors, float16 [P, K, H]."""
        for first in range(0, self.passages, BLOCK):
            yield self._draw(min(BLOCK, self.passages - first), self.slots, first)

    def _table(self, first: int) -> pa.Table:
        vectors_PKH = self._draw(min(BLOCK, self.passages - first), self.slots, first)
        passages = [Passage(name(first + i), "", f"made up {first + i}") for i in range(len(vectors_PKH))]
        return beside(text_table(passages, "made-up"), _representations(vectors_PKH).to_arrow())

    def _draw(self, count: int, slots: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        vectors = rng.standard_normal((count, slots, self.dims), np.float32)
        if self.spread == "clustered":
            centroids = max(1, self.passages // _PASSAGES_PER_CENTROID)
            centroids_CH = np.random.default_rng(_QUERY_SEED - 1).standard_normal((centroids, self.dims), np.float32)
            vectors += rng.standard_normal((count, 1, self.dims), np.float32)
            vectors += centroids_CH[rng.integers(0, centroids, count)][:, None]
        return (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).astype(np.float16)

    def _manifest(self) -> IndexManifest:
        retriever = MaskedRetriever.model_validate(
            {"backbone": {"source": "made-up"}, "budget": f"q{self.query_slots}p{self.slots}"}
        )
        return IndexManifest(
            retriever=retriever,
            weights="made-up",
            hidden_size=self.dims,
            vocab_size=1,
            created="2026-01-01T00:00:00+00:00",
        )


def name(row: int) -> str:
    """Return an id that sorts as the rows do."""
    return f"{row:09d}"


def _representations(vectors_PKH: np.ndarray) -> Representations:
    count, slots, dims = vectors_PKH.shape
    none, zeros = np.empty(0, np.int32), np.zeros(count + 1, np.int64)
    return Representations(
        vectors_MH=vectors_PKH.reshape(-1, dims),
        offsets=np.arange(count + 1) * slots,
        slot_tokens=np.full(count * slots, -1, np.int32),
        impact_ids=none,
        impact_weights=np.empty(0, np.float32),
        impact_offsets=zeros,
        n_tokens=np.ones(count, np.int32),
    )

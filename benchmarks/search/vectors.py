"""Vectors as a real index, for measuring search at any size: made up, or a model's own and others like them.

Legend: P passages, K slots of a passage, Q queries, M slots of a query, H hidden size, C centroids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pydantic import Field

from benchmarks.search.arrays import Arrays
from diffretriever.collections import Passage
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.base import Model
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.vectors.representations import Representations

BLOCK = 25_000
"""Passages drawn at once."""
FRAGMENT = 500_000
"""Passages of a data file, about as many of 4 vectors of 384 numbers as compaction makes one of."""
TEXT_WORDS = 56
"""Words of a made-up text."""
VOCABULARY = 150_000
"""Words to draw from."""
_RANK_SHIFT = 50
_PASSAGES_PER_CENTROID = 100
_QUERY_SEED = 1 << 40
SAMPLE_SEED = 1
"""Of the queries that a calibration is done with."""


class Vectors(Model, ABC):
    """The vectors of a collection; the same values give the same vectors."""

    passages: int
    """How many."""
    slots: int
    """K_p."""
    dims: int
    """H."""
    query_slots: int = 4
    """K_q."""

    def write(self, uri: str) -> PassageIndex:
        """Write an index of one data file for each `FRAGMENT`."""
        index = PassageIndex.create(uri, self._manifest())
        committer = Committer(index)
        blocks = enumerate(self.blocks())
        while together := list(islice(blocks, max(1, FRAGMENT // BLOCK))):
            tables = [self._table(number * BLOCK, vectors_PKH) for number, vectors_PKH in together]
            committer.commit({str(together[0][0]): write_block(uri, pa.concat_tables(tables))}, [])
        return index

    @staticmethod
    def _table(first: int, vectors_PKH: np.ndarray) -> pa.Table:
        texts = made_up_texts(len(vectors_PKH), TEXT_WORDS, first)
        passages = [Passage(name(first + i), "", text) for i, text in enumerate(texts)]
        return join_columns(text_table(passages, "bench"), _representations(vectors_PKH).to_arrow())

    def queries(self, count: int, seed: int = 0) -> Representations:
        """Return queries; another seed gives others."""
        return _representations(self._queries(count, seed))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the passages' vectors, float16 [P, K, H], `BLOCK` at a time."""
        for first in range(0, self.passages, BLOCK):
            yield self._passages(first, min(BLOCK, self.passages - first))

    @abstractmethod
    def _passages(self, first: int, count: int) -> np.ndarray:
        """Return the vectors of some passages, float16 [P, K, H]."""

    @abstractmethod
    def _queries(self, count: int, seed: int) -> np.ndarray:
        """Return queries' vectors, float16 [Q, M, H]."""

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


class MadeUpVectors(Vectors):
    """Vectors that nobody's model made."""

    spread: Literal["clustered", "independent"]
    """`clustered`: a passage's slots share a component of their own and one with a hundred passages, and so do
    queries. `independent`: every vector is drawn alone, so that nothing but its codes says where a passage is."""

    def _passages(self, first: int, count: int) -> np.ndarray:
        return self._draw(count, self.slots, first)

    def _queries(self, count: int, seed: int) -> np.ndarray:
        return self._draw(count, self.query_slots, _QUERY_SEED + seed)

    def _draw(self, count: int, slots: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        vectors = rng.standard_normal((count, slots, self.dims), np.float32)
        if self.spread == "clustered":
            centroids = max(1, self.passages // _PASSAGES_PER_CENTROID)
            centroids_CH = np.random.default_rng(_QUERY_SEED - 1).standard_normal((centroids, self.dims), np.float32)
            vectors += rng.standard_normal((count, 1, self.dims), np.float32)
            vectors += centroids_CH[rng.integers(0, centroids, count)][:, None]
        return _unit(vectors)


class RealVectors(Vectors):
    """A model's vectors of passages and queries; more passages than there are, are drawn near them.

    A drawn passage is a real one moved as far as real ones are from their nearest neighbour, in the directions in which
    these lie, and each slot in the directions in which the slots of neighbours differ (`Arrays`).
    """

    spread: Literal["real"]
    folder: str
    """What `python -m benchmarks.search.arrays` wrote."""

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays.read(Path(self.folder))

    def _passages(self, first: int, count: int) -> np.ndarray:
        there_PKH = self._arrays.passages_PKH
        real_PKH = there_PKH[first : first + count, : self.slots]
        drawn = count - len(real_PKH)
        if not drawn:
            return np.ascontiguousarray(real_PKH)
        rng = np.random.default_rng(first)
        moved = there_PKH[rng.integers(0, len(there_PKH), drawn), : self.slots].astype(np.float32)
        moved += rng.standard_normal((drawn, 1, self.dims), np.float32) @ self._arrays.shared_HH
        moved += rng.standard_normal(moved.shape, np.float32) @ self._arrays.own_HH
        return np.concatenate([real_PKH, _unit(moved)])

    def _queries(self, count: int, seed: int) -> np.ndarray:
        arrays = self._arrays
        asked_QMH = arrays.sample_QMH if seed == SAMPLE_SEED else arrays.queries_QMH[seed * count :]
        return np.ascontiguousarray(asked_QMH[:count])


AnyVectors: TypeAlias = Annotated[MadeUpVectors | RealVectors, Field(discriminator="spread")]


def name(row: int) -> str:
    """Return an id that sorts as the rows do."""
    return f"{row:09d}"


def made_up_texts(count: int, words: int, seed: int) -> list[str]:
    """Return texts of so many words each, drawn as `made_up_ranks` says."""
    # No stop word begins or ends so, and no stemmer cuts such a word.
    return [" ".join(f"w{rank:x}q" for rank in each) for each in made_up_ranks(count, words, seed).tolist()]


def made_up_ranks(count: int, words: int, seed: int) -> np.ndarray:
    """Return words int64 [count, words] by Zipf's law: the r-th most frequent in proportion to 1 / (r + 50).

    So the first is in a seventh of all passages of 56 words, as content words of real text are.
    """
    drawn = np.random.default_rng(seed).random((count, words))
    ranks = ((VOCABULARY / _RANK_SHIFT + 1) ** drawn - 1) * _RANK_SHIFT
    return np.minimum(ranks.astype(np.int64), VOCABULARY - 1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).astype(np.float16)


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

"""A model's vectors as arrays: of the passages of an index, of questions, and how near neighbours lie to each other.

Legend: P passages, K slots of a passage, Q queries, M slots of a query, H hidden size, S sampled passages.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import PositiveInt

from benchmarks.measuring import run
from diffretriever.schemas.locations import IndexLocation
from diffretriever.schemas.settings import JobConfig

_SAMPLED = 4096
"""Passages whose nearest neighbours are looked for."""
_ROWS_AT_ONCE = 4096


class BenchArrays(JobConfig):
    """Write the arrays that `python -m benchmarks.search --spread real --real FOLDER` measures on."""

    index: IndexLocation
    """Index of a masked retriever, as encode_beir.py made it."""
    collection: str
    """The collection that it was made of: its queries are asked."""
    queries: PositiveInt = 1000
    """How many of them."""
    sample: PositiveInt = 200
    """Queries to calibrate with: the beginnings of passages, as accelerate_index.py takes them."""
    output: Path
    """Folder to write, which must not be there yet."""


class Arrays(NamedTuple):
    """What lies in the folder, mapped."""

    passages_PKH: np.ndarray
    """float16, in random order."""
    queries_QMH: np.ndarray
    """float16, of questions."""
    sample_QMH: np.ndarray
    """float16, of passages' beginnings."""
    shared_HH: np.ndarray
    """float32: normal numbers times this are as the difference of the means of a passage and its nearest neighbour."""
    own_HH: np.ndarray
    """float32: likewise, of what a slot differs by beyond that."""

    @classmethod
    def read(cls, folder: Path) -> Arrays:
        """Map the files in a folder."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in cls._fields))

    def write(self, folder: Path) -> None:
        """Write them into a folder."""
        for name, array in self._asdict().items():
            np.save(folder / f"{name}.npy", array)


def main(config: BenchArrays) -> None:
    """Read the index, encode the queries, measure the neighbours."""
    from diffretriever.collections import open_collection
    from diffretriever.core.files import whole_folder
    from diffretriever.search import open_searcher
    from diffretriever.search.dense.candidates import sample_queries
    from diffretriever.vectors.representations import read_vectors

    searcher = open_searcher(config.index)
    assert searcher.encoder is not None, "an index with vectors has an encoder"
    index, encoder = searcher.index, searcher.encoder
    parts = [read_vectors(batch) for batch in index.addressed_batches(["reps"], _ROWS_AT_ONCE)]
    slots = parts[0][1][1]
    assert all((np.diff(offsets) == slots).all() for _, offsets in parts), "every passage has as many slots"
    passages_PKH = np.concatenate([vectors_NH.reshape(-1, slots, vectors_NH.shape[1]) for vectors_NH, _ in parts])
    rng = np.random.default_rng(0)
    collection = open_collection(config.collection)
    texts = [query.text for split in collection.splits() for query in collection.queries(split)]
    asked = encoder.encode_queries([texts[i] for i in rng.permutation(len(texts))[: config.queries]])
    sample = sample_queries(index, encoder, config.sample)
    query_shape = (-1, int(asked.offsets[1]), passages_PKH.shape[2])
    with whole_folder(config.output) as folder:
        Arrays(
            rng.permutation(passages_PKH),
            asked.vectors_MH.reshape(query_shape),
            sample.vectors_MH.reshape(query_shape),
            *spectra(passages_PKH),
        ).write(folder)
    count, asked_for = len(passages_PKH), f"{len(asked):,} and {len(sample):,} queries"
    print(f"{config.output}: {count:,} passages of {slots} vectors, {asked_for}")


def spectra(passages_PKH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return roots of two covariances, float32 [H, H]: of neighbours' means, and of what their slots differ by beyond.

    Args:
        passages_PKH: float16 [P, K, H].
    """
    means_PH = passages_PKH.astype(np.float32).mean(axis=1)
    sampled_S = np.random.default_rng(0).choice(len(means_PH), min(_SAMPLED, len(means_PH)), replace=False)
    products_SP = means_PH[sampled_S] @ means_PH.T
    products_SP[np.arange(len(sampled_S)), sampled_S] = -np.inf
    nearest_S = products_SP.argmax(axis=1)
    gaps_SKH = passages_PKH[nearest_S].astype(np.float32) - passages_PKH[sampled_S].astype(np.float32)
    shared_SH = gaps_SKH.mean(axis=1)
    own_NH = (gaps_SKH - shared_SH[:, None]).reshape(-1, gaps_SKH.shape[2])
    return _root(shared_SH), _root(own_NH)


def _root(differences_NH: np.ndarray) -> np.ndarray:
    """Return the symmetric root of the second moments, float32 [H, H]."""
    values, axes = np.linalg.eigh(differences_NH.T @ differences_NH / len(differences_NH))
    root: np.ndarray = (axes * np.sqrt(values.clip(min=0))) @ axes.T
    return root.astype(np.float32)


if __name__ == "__main__":
    run(BenchArrays, main)

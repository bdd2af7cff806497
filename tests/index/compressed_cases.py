"""Indexes of synthetic passages, and their compression without Ray."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from diffretriever.collections import Passage
from diffretriever.core.files import write_bytes
from diffretriever.index.rewrite import sample_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.vectors import codec_file
from diffretriever.index.writer import Committer, join_columns, text_table, write_block
from diffretriever.schemas.codec import CodecConfig, StoredCodec
from diffretriever.schemas.index import IndexManifest
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.dense import open_dense
from diffretriever.search.dense.compressed import CompressedScan
from diffretriever.search.dense.stream import StreamingScan
from diffretriever.search.inspection import inspect
from diffretriever.vectors.hits import Hits
from diffretriever.vectors.product import Codec
from diffretriever.vectors.representations import Representations, read_vectors
from tests.index.index_cases import represented, write_anew

HIDDEN, MOST_VECTORS = 64, 3
CPU = torch.device("cpu")


def manifest(hidden_size: int = HIDDEN) -> IndexManifest:
    retriever = MaskedRetriever.model_validate({"backbone": {"source": "x"}, "budget": f"q2p{MOST_VECTORS}"})
    return IndexManifest(retriever=retriever, weights="w", hidden_size=hidden_size, vocab_size=50, created="2026-01-01")


def representations(n: int, seed: int) -> Representations:
    """One to three unit vectors a text, around a few directions, so that many scores lie close together."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, MOST_VECTORS + 1, n)
    centres = np.random.default_rng(0).normal(size=(8, HIDDEN))
    vectors = centres[rng.integers(0, 8, counts.sum())] + 0.3 * rng.normal(size=(counts.sum(), HIDDEN))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return represented(np.split(vectors, np.cumsum(counts)[:-1]), [{7: 1.0}] * n)


QUERIES = representations(6, seed=77)


def block(ids: list[str], seed: int, text: str = "text") -> pa.Table:
    passages = [Passage(i, "", f"{text} {i}") for i in ids]
    return join_columns(text_table(passages, "c"), representations(len(ids), seed).to_arrow())


def fill(uri: str, *sizes: int) -> PassageIndex:
    """An index with a fragment for each of `sizes`: passages p0, p1 and so on."""
    index, start = PassageIndex.create(uri, manifest()), 0
    for seed, size in enumerate(sizes, 1):
        add(index, [f"p{i}" for i in range(start, start + size)], seed)
        start += size
    return index


def add(index: PassageIndex, ids: list[str], seed: int, replaced: list[str] | None = None, text: str = "text") -> None:
    receipt = write_block(index.uri, block(ids, seed, text))
    Committer(index).commit({"block": receipt}, replaced or [])


def compressed(index: PassageIndex, codec: str) -> PassageIndex:
    """The index's newest version with codes, written as the job does."""
    config = CodecConfig.parse(codec)
    trained = Codec.train(config.bits, sample_of(index, 1000))
    write_bytes(codec_file(index.uri, trained.digest), trained.to_bytes())
    stored = StoredCodec(name=config, digest=trained.digest, width=trained.bytes_per_vector)
    made = PassageIndex.open(index.uri)
    write_anew(made, index.manifest.model_copy(update={"codec": stored}))
    return made


def stored_vectors(index: PassageIndex) -> np.ndarray:
    """All vectors in table order, as any reader gets them."""
    return np.concatenate([read_vectors(batch)[0] for batch in index.batches(["reps"], 7)])


def streamed(index: PassageIndex, k: int) -> Hits:
    return StreamingScan(index, SearchOptions(index=index.uri), CPU).search(QUERIES, k)


def found(index: PassageIndex, k: int, expected: type = CompressedScan) -> Hits:
    search = open_dense(index, SearchOptions(index=index.uri), CPU)
    assert isinstance(search, expected)
    return search.search(QUERIES, k)


def assert_sound(index: PassageIndex) -> None:
    verification = inspect(index, check=True).verification
    assert verification is not None
    assert verification.problems == []
    assert verification.vectors == len(stored_vectors(index))

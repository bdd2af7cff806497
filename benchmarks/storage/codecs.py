"""One index under every codec: its figures, and how they are measured. All vectors are held in memory in fp32.

Legend: N vectors, H hidden size, Q queries, P passages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from diffretriever.codecs.product import Codec
from diffretriever.collections import Run
from diffretriever.evaluation.measures import EvaluationResult, evaluate
from diffretriever.evaluation.statistics import paired_p
from diffretriever.index.rewrite import sample_of
from diffretriever.index.table import PassageIndex
from diffretriever.representations import Representations, read_vectors
from diffretriever.schemas.base import Model
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.search import SearchOptions
from diffretriever.scoring.hits import Passages, TopK
from diffretriever.scoring.maxsim import maxsim

if TYPE_CHECKING:
    from diffretriever.collections import Collection

COLUMNS = ("codec", "bytes", "of bf16", "of zstd", "nDCG@10", "difference", "p", "goal", "encode", "score", "score 32")
_GOALS = {1: 0.010, 2: 0.005}
"""Bits a dimension → most of nDCG@10 that may be lost."""
_MEASURE = "nDCG@10"
_ROWS = 1024
_SAMPLE = 131072
_TIMED_QUERIES = 32
_REPEATS = 3


class CodecFigures(Model):
    """Of one codec on one index."""

    codec: str
    bits: int
    bytes_per_passage: float
    """Of codes; the codec's own file is left out."""
    file_bytes: int
    """Of the codec's own file: centroids, or rotation and codebooks."""
    raw_ratio: float
    """Bytes of bf16 vectors over those of codes."""
    zstd_ratio: float
    """The same with bf16 vectors compressed by zstd at level 3, as the authors' `shard_io.py` stores them."""
    ndcg: float
    """nDCG@10 of exact MaxSim over the decoded vectors."""
    difference: float
    """To the original vectors'."""
    p: float
    """Of the paired two-sided t-test over queries."""
    train_seconds: float
    encode_us: float
    """Microseconds a vector, one thread."""
    score_share: float
    """Time to score all passages from codes, one query at a time, over that of fp32 products."""
    score_share_32: float
    """The same with 32 queries at a time."""

    def row(self) -> list[str]:
        """Return the row of the printed table."""
        most = _GOALS.get(self.bits)
        goal = "" if most is None else f">= -{most:.3f}, {'met' if self.difference >= -most else 'MISSED'}"
        return [
            self.codec,
            f"{self.bytes_per_passage:.0f}",
            f"{self.raw_ratio:.2f}x",
            f"{self.zstd_ratio:.2f}x",
            f"{self.ndcg:.4f}",
            f"{self.difference:+.4f}",
            f"{self.p:.3f}",
            goal,
            f"{self.encode_us:.0f} us",
            f"{self.score_share:.2f}",
            f"{self.score_share_32:.2f}",
        ]


class IndexFigures(Model):
    """Of one index."""

    retriever: str
    collection: str
    passages: int
    vectors: int
    hidden_size: int
    queries: int
    ndcg: float
    """nDCG@10 of the original vectors."""
    zstd_share: float
    """Bytes of bf16 vectors after zstd over those before."""
    codecs: list[CodecFigures]

    def title(self) -> str:
        """Return what the table is of."""
        bf16 = self.vectors * self.hidden_size * 2 / self.passages
        return (
            f"{self.collection}, {self.retriever}: {self.passages:,} passages, {self.vectors:,} vectors of "
            f"{self.hidden_size}, {self.queries:,} queries\n"
            f"original nDCG@10 {self.ndcg:.4f}; bf16 {bf16:,.0f} bytes a passage, zstd leaves {self.zstd_share:.3f}"
        )


@dataclass(frozen=True)
class Corpus:
    """An index in memory, with a collection's queries."""

    index: PassageIndex
    ids: list[str]
    vectors_NH: np.ndarray
    offsets: np.ndarray
    queries: Representations
    query_ids: list[str]
    qrels: dict[str, dict[str, int]]

    def measure(self, vectors_NH: np.ndarray) -> EvaluationResult:
        """Measure the exact ranking by these vectors."""
        known, numbers_P = Passages.numbered(pa.array(self.ids, pa.large_string()))
        best, passages = TopK(len(self.queries), 10 + 1, known), torch.from_numpy(vectors_NH.astype(np.float32))
        queries = torch.from_numpy(self.queries.vectors_MH)
        best.add(maxsim(queries, self.queries.offsets, passages, self.offsets).numpy(), numbers_P)
        # As BEIR does, a query's own document does not count.
        return evaluate(Run(self.query_ids, best.results()).without_self(), self.qrels, [_MEASURE])


def load(uri: str, collection: Collection, split: str) -> Corpus:
    """Read an index and encode the queries of a split with the retriever that made it."""
    from diffretriever.search import open_searcher
    from diffretriever.search.neural import NeuralSearcher

    searcher = open_searcher(uri, SearchOptions(index=uri))
    if not isinstance(searcher, NeuralSearcher):
        raise ValueError(f"{uri} holds no vectors: give indexes of dense retrievers")
    batches = list(searcher.index.batches(["id", "reps"], _ROWS))
    read = [read_vectors(batch) for batch in batches]
    counts = np.concatenate([np.diff(offsets) for _, offsets in read])
    queries = collection.queries(split)
    return Corpus(
        index=searcher.index,
        ids=[i for batch in batches for i in batch.column("id").to_pylist()],
        vectors_NH=np.concatenate([vectors for vectors, _ in read]).astype(np.float32),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        queries=searcher.encoder.encode_queries([query.text for query in queries]),
        query_ids=[query.id for query in queries],
        qrels={query: dict(judged) for query, judged in collection.qrels(split).items()},
    )


def measure_index(corpus: Corpus, name: str, codecs: list[CodecConfig]) -> IndexFigures:
    """Measure every codec against the original vectors."""
    original = corpus.measure(corpus.vectors_NH)
    share = zstd_share(corpus.vectors_NH)
    return IndexFigures(
        retriever=corpus.index.manifest.title,
        collection=name,
        passages=len(corpus.ids),
        vectors=len(corpus.vectors_NH),
        hidden_size=corpus.vectors_NH.shape[1],
        queries=len(corpus.qrels),
        ndcg=original.mean[_MEASURE],
        zstd_share=share,
        codecs=[_measure_codec(corpus, config, original, share) for config in codecs],
    )


def zstd_share(vectors_NH: np.ndarray) -> float:
    """Return what zstd at level 3 leaves of the vectors in bf16."""
    halves = torch.from_numpy(vectors_NH).to(torch.bfloat16).view(torch.int16).numpy()
    compressed = pa.Codec("zstd", compression_level=3).compress(halves.tobytes(), asbytes=True)
    return len(compressed) / halves.nbytes


def _measure_codec(corpus: Corpus, config: CodecConfig, original: EvaluationResult, share: float) -> CodecFigures:
    start = time.thread_time()
    codec = Codec.train(config.bits, sample_of(corpus.index, _SAMPLE))
    trained = time.thread_time()
    codes = codec.encode(corpus.vectors_NH)
    encoded = time.thread_time()
    stored_NH = codec.decode(codes).astype(np.float16)
    result = corpus.measure(stored_NH)
    raw = corpus.vectors_NH.size * 2 / codes.nbytes
    return CodecFigures(
        codec=str(config),
        bits=config.bits,
        bytes_per_passage=codes.nbytes / len(corpus.ids),
        file_bytes=len(codec.to_bytes()),
        raw_ratio=raw,
        zstd_ratio=raw * share,
        ndcg=result.mean[_MEASURE],
        difference=result.mean[_MEASURE] - original.mean[_MEASURE],
        p=paired_p(result.per_query[_MEASURE], original.per_query[_MEASURE]),
        train_seconds=trained - start,
        encode_us=(encoded - trained) / len(codes) * 1e6,
        score_share=_score_share(corpus, codec, codes, 1),
        score_share_32=_score_share(corpus, codec, codes, _TIMED_QUERIES),
    )


def _score_share(corpus: Corpus, codec: Codec, codes: np.ndarray, together: int) -> float:
    """Return the time of scoring from codes over that of fp32 products, so many queries at a time; medians."""
    queries = corpus.queries.take(np.arange(min(together, len(corpus.queries))))
    passages, query_vectors = torch.from_numpy(corpus.vectors_NH), torch.from_numpy(queries.vectors_MH)
    by_codes: list[float] = []
    by_vectors: list[float] = []
    for _ in range(_REPEATS + 1):
        by_codes.append(_timed(lambda: codec.maxsim(queries.vectors_MH, queries.offsets, codes, corpus.offsets)))
        by_vectors.append(_timed(lambda: maxsim(query_vectors, queries.offsets, passages, corpus.offsets)))
    # The first of each also warms up.
    return float(np.median(by_codes[1:]) / np.median(by_vectors[1:]))


def _timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start

"""The figures of benchmarks/storage.py and how they are laid out."""

from __future__ import annotations

from schemas.base import Model

COLUMNS = ("codec", "bytes", "of bf16", "of zstd", "nDCG@10", "difference", "p", "goal", "encode", "score", "score 32")
_GOALS = {1: 0.010, 2: 0.005}
"""Bits a dimension → most of nDCG@10 that may be lost."""


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
    """The same with bf16 vectors compressed by zstd at level 3, as in the paper's figures (reference §2.5)."""
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

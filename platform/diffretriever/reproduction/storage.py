"""Sizes of the paper's indexes by arithmetic, for all eight corpora: what the vectors take before and after."""

from __future__ import annotations

from dataclasses import dataclass

from diffretriever.codecs import storage_bytes
from diffretriever.index.planning import HIDDEN_SIZES, ZSTD_SHARE
from diffretriever.presets import load_retriever
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.reproduce import PublishedRow
from diffretriever.schemas.retriever import has_slots

PASSAGES = {
    "msmarco": 8_841_823,
    "nq": 2_681_468,
    "hotpotqa": 5_233_329,
    "scifact": 5_183,
    "trec-covid": 171_332,
    "fiqa": 57_638,
    "arguana": 8_674,
    "quora": 522_931,
}
"""Passages of each corpus: MS MARCO's own, the others as BEIR counts them."""

_ON_MSMARCO = ("msmarco-dev", "dl19", "dl20")
_CODEC = "residual2"
"""The paper's: a centroid and two bits a dimension."""
_BF16 = 2


@dataclass(frozen=True, slots=True)
class IndexSize:
    """Bytes of an index's vectors."""

    raw: int
    """In bf16."""
    zstd: float
    """As the paper measured: files of bf16 under zstd."""
    compressed: int
    """By the paper's codec, centroids left out."""


def corpus_of(collection: str) -> str:
    """Return the passages that a column of a table searches."""
    return "msmarco" if collection in _ON_MSMARCO else collection


def index_size(row: PublishedRow, collection: str) -> IndexSize:
    """Return what the vectors of a row's index take.

    Raises:
        ValueError: the row is no retriever with slots, or the size of the corpus or the model is not known.
    """
    config = None if row.preset is None else load_retriever(row.preset)
    if config is None or not has_slots(config) or config.backbone.source not in HIDDEN_SIZES:
        raise ValueError(f"row {row.id}: the size of its index is not known: it names no preset with slots")
    return size_of(corpus_of(collection), HIDDEN_SIZES[config.backbone.source], config.budget.passage)


def size_of(corpus: str, hidden_size: int, vectors: int) -> IndexSize:
    """Return what `vectors` vectors a passage take.

    Raises:
        ValueError: no such corpus.
    """
    if corpus not in PASSAGES:
        raise ValueError(f"no corpus {corpus}: only {', '.join(PASSAGES)}")
    count = PASSAGES[corpus] * vectors
    raw = count * hidden_size * _BF16
    return IndexSize(raw, raw * ZSTD_SHARE, storage_bytes(CodecConfig.parse(_CODEC), hidden_size, count))

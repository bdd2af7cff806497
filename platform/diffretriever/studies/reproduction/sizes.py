"""The paper's sizes by arithmetic: its four backbones from published shapes, its indexes on all eight corpora."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diffretriever.collections.beir import PUBLISHED_PASSAGES
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import has_slots
from diffretriever.studies.planning import HIDDEN_SIZES, ZSTD_SHARE
from diffretriever.studies.reproduction.config import PublishedRow
from diffretriever.testing import FAMILIES as FORMATS
from diffretriever.testing.published import Published, Shapes, Sizes

_DREAM, _LLADA = "Dream-org/Dream-v0-Instruct-7B", "GSAI-ML/LLaDA-8B-Instruct"
_LLAMA3, _QWEN = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
_SIZES = {
    _DREAM: Sizes(3584, 28, 28, 4, 18944, 152064, 131072),
    _LLADA: Sizes(4096, 32, 32, 32, 12288, 126464, 4096),
    _LLAMA3: Sizes(4096, 32, 32, 8, 14336, 128256, 8192),
    _QWEN: Sizes(3584, 28, 28, 4, 18944, 152064, 32768),
}
FAMILIES = {_DREAM: "dream", _LLADA: "llada", _LLAMA3: "llama3", _QWEN: "qwen2"}
"""What the presets name → its family in `diffretriever.testing`."""
BF16 = 2
"""Bytes of a number."""
_ON_MSMARCO = ("msmarco-dev", "dl19", "dl20")
CODEC = "product2"
"""Of the compressed copies that are evaluated: ours, of nearly the size of the paper's."""
_CENTROID_BYTES = 4
"""Of a vector in the paper's codec, ColBERTv2's: the number of a centroid; two bits a dimension follow."""


def published_of(source: str) -> Published:
    """Return how checkpoints of the family of one of `FAMILIES` look."""
    return FORMATS[FAMILIES[source]]


def shapes_of(source: str) -> Shapes:
    """Return the tensors of one of `FAMILIES`."""
    return published_of(source).shapes(_SIZES[source])


def sizes_of(source: str) -> Sizes:
    """Return the sizes of one of `FAMILIES`."""
    return _SIZES[source]


def parameters_of(source: str) -> int:
    """Return how many numbers the weights of one of `FAMILIES` are."""
    return sum(map(math.prod, shapes_of(source).values()))


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
    """Return the size of the vectors of a row's index; raise `ValueError` for a row without slots."""
    config = None if row.preset is None else load_retriever(row.preset)
    if config is None or not has_slots(config) or config.backbone.source not in HIDDEN_SIZES:
        raise ValueError(f"row {row.id}: the size of its index is not known: it names no preset with slots")
    hidden_size = HIDDEN_SIZES[config.backbone.source]
    count = PUBLISHED_PASSAGES[corpus_of(collection)] * config.budget.passage
    raw = count * hidden_size * BF16
    return IndexSize(raw, raw * ZSTD_SHARE, count * (_CENTROID_BYTES + hidden_size // 4))

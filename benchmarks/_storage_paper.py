"""What the vectors of the paper's indexes take, by arithmetic: in the paper's own figures, and by our codecs."""

from __future__ import annotations

from diffretriever.codecs import storage_bytes
from diffretriever.index.planning import GIB, ZSTD_SHARE
from schemas.codec import CodecConfig

COLUMNS = ("corpus", "retriever", "bf16", "zstd bf16", "paper", "residual2", "paper's", "product2", "product1")
_PASSAGES = {"MS MARCO": 8_841_823, "NQ": 2_681_468, "HotpotQA": 5_233_329, "TREC-COVID": 171_332, "Quora": 522_931}
_SHAPES = {"Dream 1": (3584, 1), "Dream 16": (3584, 16), "LLaDA 1": (4096, 1), "LLaDA 4": (4096, 4)}
"""Retriever and K_p → hidden size and vectors of a passage."""
_PAPER = {
    "MS MARCO": ("48→7.5", "742→118", "54→8.5", "213→34"),
    "NQ": ("15→2.3", "225→36", "17→2.6", "65→11"),
    "HotpotQA": ("29→4.4", "439→70", "32→5.1", "126→20"),
    "TREC-COVID": (".94→.15", "15→2.3", "1.1→.17", "4.2→.65"),
    "Quora": ("2.8→.44", "44→6.7", "", ""),
}
"""GiB before and after, by corpus, in the order of the shapes; blank where it is not used here."""


def rows() -> list[list[str]]:
    """Return the table's rows, in GiB; the codecs' own files (centroids, codebooks) are left out."""
    return [
        _row(corpus, passages, retriever, paper)
        for corpus, passages in _PASSAGES.items()
        for retriever, paper in zip(_SHAPES, _PAPER[corpus], strict=True)
        if paper
    ]


def _row(corpus: str, passages: int, retriever: str, paper: str) -> list[str]:
    hidden_size, vectors = _SHAPES[retriever]
    raw = passages * vectors * hidden_size * 2
    before, after = paper.split("→")
    residual2, product2, product1 = (
        storage_bytes(CodecConfig.parse(name), hidden_size, passages * vectors)
        for name in ("residual2", "product2", "product1")
    )
    sizes: list[float | str] = [raw, raw * ZSTD_SHARE, before, residual2, after, product2, product1]
    return [corpus, retriever, *(size if isinstance(size, str) else f"{size / GIB:.2f}" for size in sizes)]

"""Storage against effectiveness: every codec on real indexes, and what the paper's indexes take by arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from benchmarks.measuring import Benchmark, header, run
from diffretriever.schemas.codec import Bits, CodecConfig
from diffretriever.schemas.encode import EncodeJob

_PRESETS = ("minilm-pooled", "diffretriever-minilm")
_PAPER_COLUMNS = ("corpus", "retriever", "bf16", "zstd bf16", "paper", "paper's", "product2", "product1")
_PAPER_PASSAGES = {
    "MS MARCO": 8_841_823,
    "NQ": 2_681_468,
    "HotpotQA": 5_233_329,
    "TREC-COVID": 171_332,
    "Quora": 522_931,
}
_PAPER_SHAPES = {"Dream 1": (3584, 1), "Dream 16": (3584, 16), "LLaDA 1": (4096, 1), "LLaDA 4": (4096, 4)}
"""Retriever and K_p → hidden size and vectors of a passage."""
_PAPER = {
    "MS MARCO": ("48→7.5", "742→118", "54→8.5", "213→34"),
    "NQ": ("15→2.3", "225→36", "17→2.6", "65→11"),
    "HotpotQA": ("29→4.4", "439→70", "32→5.1", "126→20"),
    "TREC-COVID": (".94→.15", "15→2.3", "1.1→.17", "4.2→.65"),
    "Quora": ("2.8→.44", "44→6.7", "", ""),
}
"""The paper's GiB before and after, by corpus, in the order of the shapes; blank where it is not used here."""


class StorageBenchmark(Benchmark):
    """Measure every codec at 1, 2 and 4 bits: nDCG@10 before and after, bytes, and time beside fp32, on one core."""

    indexes: tuple[Path, ...] = ()
    """Indexes of --collection to measure; default: two, by minilm-pooled and diffretriever-minilm, made in --work."""
    collection: str = "pydoc"
    """Collection whose queries are searched; see encode_beir.py."""
    split: str = "test"
    """Split of its qrels."""
    work: Path = Path("results/storage-indexes")
    """Folder for the indexes that are made; a later run finds them there."""


def main(config: StorageBenchmark) -> None:
    """Measure each index, print the tables, write JSON if asked to."""
    import torch

    from benchmarks.storage.codecs import COLUMNS, load, measure_index
    from diffretriever.collections import open_collection
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    indexes = config.indexes or [_made(config, preset) for preset in _PRESETS]
    torch.set_num_threads(1)
    collection = open_collection(config.collection)
    codecs = [CodecConfig(bits) for bits in get_args(Bits)]
    results, text = [], ""
    for index in indexes:
        figures = measure_index(load(str(index), collection, config.split), collection.name, codecs)
        sys.stderr.write(f"{index}: done\n")
        results.append(figures)
        text += f"\n{figures.title()}\n\n{format_table([each.row() for each in figures.codecs], COLUMNS)}\n"
    text += "\nThe paper's indexes, GiB of vectors (the paper's own figures: original, compressed)\n\n"
    text += format_table(_paper_rows(), _PAPER_COLUMNS)
    config.report(about, text, results=[result.model_dump() for result in results])


def _made(config: StorageBenchmark, preset: str) -> Path:
    from diffretriever.pipelines.encode import encode_collection

    index = config.work / f"{Path(config.collection).name}-{preset}"
    encode_collection(EncodeJob(collection=config.collection, retriever=preset, index=str(index)))
    return index


def _paper_rows() -> list[list[str]]:
    """Return the rows of the paper's indexes, in GiB; the codecs' own files (centroids, codebooks) are left out."""
    return [
        _paper_row(corpus, passages, retriever, paper)
        for corpus, passages in _PAPER_PASSAGES.items()
        for retriever, paper in zip(_PAPER_SHAPES, _PAPER[corpus], strict=True)
        if paper
    ]


def _paper_row(corpus: str, passages: int, retriever: str, paper: str) -> list[str]:
    from diffretriever.studies.planning import GIB, ZSTD_SHARE

    hidden_size, vectors = _PAPER_SHAPES[retriever]
    raw = passages * vectors * hidden_size * 2
    before, after = paper.split("→")
    product2, product1 = (passages * vectors * CodecConfig(bits).bytes_per_vector(hidden_size) for bits in (2, 1))
    sizes: list[float | str] = [raw, raw * ZSTD_SHARE, before, after, product2, product1]
    return [corpus, retriever, *(size if isinstance(size, str) else f"{size / GIB:.2f}" for size in sizes)]


if __name__ == "__main__":
    run(StorageBenchmark, main)

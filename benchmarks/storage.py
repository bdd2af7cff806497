"""Storage against effectiveness: every codec on real indexes, and what the paper's indexes take by arithmetic."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from benchmarks import _storage_figures, _storage_paper  # noqa: E402  (found through it)
from benchmarks._common import header  # noqa: E402
from schemas.codec import Bits, CodecConfig, Family  # noqa: E402
from schemas.encode import EncodeJob  # noqa: E402
from schemas.settings import JobConfig  # noqa: E402

_PRESETS = ("minilm-pooled", "diffretriever-minilm")


class StorageBenchmark(JobConfig):
    """Measure every codec at 1, 2 and 4 bits: nDCG@10 before and after, bytes, and time beside fp32, on one core."""

    indexes: tuple[Path, ...] = ()
    """Indexes of --collection to measure; default: two, by minilm-pooled and diffretriever-minilm, made in --work."""
    collection: str = "pydoc"
    """Collection whose queries are searched; see encode_beir.py."""
    split: str = "test"
    """Split of its qrels."""
    work: Path = Path("results/storage-indexes")
    """Folder for the indexes that are made; a later run finds them there."""
    output: Path | None = None
    """JSON file for all figures."""


def main(config: StorageBenchmark) -> None:
    """Measure each index, print the tables, write JSON if asked to."""
    import torch

    from benchmarks._storage_loops import load, measure_index
    from diffretriever.collections import open_collection
    from diffretriever.evaluation.tables import format_table

    about = header()
    indexes = config.indexes or [_made(config, preset) for preset in _PRESETS]
    torch.set_num_threads(1)
    collection = open_collection(config.collection)
    codecs = [CodecConfig(family, bits) for bits in get_args(Bits) for family in get_args(Family)]
    print("\n".join(f"{name}: {text}" for name, text in about.items()))
    results = []
    for index in indexes:
        figures = measure_index(load(str(index), collection, config.split), collection.name, codecs)
        results.append(figures)
        table = format_table([each.row() for each in figures.codecs], _storage_figures.COLUMNS)
        print(f"\n{figures.title()}\n\n{table}", flush=True)
    print("\nThe paper's indexes, GiB of vectors (the paper's own figures: original, compressed)\n")
    print(format_table(_storage_paper.rows(), _storage_paper.COLUMNS))
    if config.output is not None:
        content = {**about, "settings": config.model_dump(mode="json"), "results": [r.model_dump() for r in results]}
        config.output.parent.mkdir(parents=True, exist_ok=True)
        config.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _made(config: StorageBenchmark, preset: str) -> Path:
    from diffretriever.pipelines.encode import encode_collection

    index = config.work / f"{Path(config.collection).name}-{preset}"
    encode_collection(EncodeJob(collection=config.collection, retriever=preset, index=str(index)))
    return index


if __name__ == "__main__":
    main(StorageBenchmark.from_command_line())

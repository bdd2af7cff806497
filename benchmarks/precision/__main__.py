"""What a precision costs: the measure of a collection's queries, and how far its passages' vectors move.

A part of the collection is measured, the same in every precision, for a CPU takes long in some of them. Each precision
encodes passages and queries and searches exactly. Vectors are compared with those of the first one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks.measuring import Benchmark, header, in_child, run
from diffretriever.schemas.retriever import Dtype

MEASURE = "nDCG@10"
SPLIT = "test"
_COLUMNS = ("retriever", "precision", f"{MEASURE} dense", "mean cosine", "least cosine")


class PrecisionBenchmark(Benchmark):
    """Encode a collection in several precisions, search it, and compare."""

    retrievers: tuple[str, ...] = Field(default=("diffretriever-minilm-untrained", "minilm-pooled"), min_length=1)
    """Presets, or YAML files that describe retrievers."""
    dtypes: tuple[Dtype, ...] = Field(default=("float32", "bfloat16", "float8"), min_length=1)
    """Precisions; vectors are compared with those of the first."""
    collection: str = "pydoc"
    """Collection with a split `test`; see jobs/encode_beir.py."""
    queries: PositiveInt = 500
    """Its queries that are asked, drawn at random."""
    passages: PositiveInt = 1500
    """Its passages that are searched: those judged for these queries, and others drawn at random."""
    seed: NonNegativeInt = 0
    """Of what is drawn."""
    device: str = "auto"
    """`cpu`, `cuda`; `auto`: a GPU if there is one."""


def main(config: PrecisionBenchmark) -> None:
    """Measure every retriever in every precision, print a table, write JSON if asked to."""
    from diffretriever.evaluation.formats.tables import format_table

    about = header()
    figures: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        part = Path(folder) / config.collection
        part.mkdir()
        _write_part(config, part)
        for number, retriever in enumerate(config.retrievers):
            own = Path(folder) / str(number)
            own.mkdir()
            figures += [_measured(config, retriever, dtype, part, own) for dtype in config.dtypes]
    rows = [
        [
            each["retriever"],
            each["dtype"],
            f"{each['measure']:.4f}",
            f"{each['mean_cosine']:.5f}",
            f"{each['least_cosine']:.5f}",
        ]
        for each in figures
    ]
    config.report(about, format_table(rows, _COLUMNS), results=figures)


def _write_part(config: PrecisionBenchmark, folder: Path) -> None:
    """Write the part of the collection that is measured, as a collection."""
    from diffretriever.collections import Passage, open_collection
    from diffretriever.collections.beir import write_beir_folder

    source, drawing = open_collection(config.collection), np.random.default_rng(config.seed)
    queries, qrels = source.queries(SPLIT), source.qrels(SPLIT)
    asked = [queries[i] for i in drawing.permutation(len(queries))[: config.queries]]
    judged = {passage_id for query in asked for passage_id in qrels[query.id]}
    passages = [record for record in source.records() if isinstance(record, Passage)]
    others = [passage.id for passage in passages if passage.id not in judged]
    kept = judged | {others[i] for i in drawing.permutation(len(others))[: max(0, config.passages - len(judged))]}
    corpus = (passage for passage in passages if passage.id in kept)
    write_beir_folder(folder, corpus, asked, {SPLIT: {query.id: qrels[query.id] for query in asked}})


def _measured(config: PrecisionBenchmark, retriever: str, dtype: Dtype, part: Path, folder: Path) -> dict[str, Any]:
    found = in_child(
        "benchmarks.precision.loops", "measure", retriever=retriever, dtype=dtype, collection=str(part),
        device=config.device, folder=str(folder),
    )  # fmt: skip
    sys.stderr.write(f"{retriever} {dtype}: {MEASURE} {found['measure']:.4f}\n")
    return {"retriever": retriever, "dtype": dtype, **found, **_cosines(folder, config.dtypes[0], dtype)}


def _cosines(folder: Path, first: Dtype, other: Dtype) -> dict[str, float]:
    """Return mean and least cosine of the same vectors in two precisions, which `measure` has left."""
    one_MH, other_MH = (np.load(folder / f"{dtype}.npy").astype(np.float32) for dtype in (first, other))
    # Stored vectors are of length 1 up to their rounding.
    lengths_M = np.linalg.norm(one_MH, axis=1) * np.linalg.norm(other_MH, axis=1)
    cosines_M = (one_MH * other_MH).sum(1) / lengths_M
    return {"mean_cosine": float(cosines_M.mean()), "least_cosine": float(cosines_M.min())}


if __name__ == "__main__":
    run(PrecisionBenchmark, main)

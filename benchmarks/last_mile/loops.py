"""The measurements of the last mile, each in a process of its own.

Legend: N vectors, T terms of all texts, H hidden size.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch

from benchmarks.measuring import peak_mb, serve_child

HIDDEN, VOCAB, SLOTS, PASSAGE_TERMS, QUERY_TERMS = 384, 30_522, 4, 40, 6
"""About those of the demo's index."""


class Encoded:
    """Stands for an encoder: gives what was drawn for the queries of these texts, which are numbers."""

    def __init__(self, manifest: Any, queries: Any) -> None:
        self.config = manifest.retriever
        self.facts = SimpleNamespace(device=torch.device("cpu"))
        self._queries = queries

    def encode_queries(self, texts: list[str], budgets: list[int] | None = None) -> Any:
        """Return the representations of these queries."""
        return self._queries.take(np.array([int(text.split()[1]) for text in texts]))


def evaluation(made: dict[str, int], top_k: int, *, accelerated: bool) -> dict[str, float]:
    """Return CPU seconds and peak memory of an evaluation without its encoding: dense, sparse and hybrid."""
    from diffretriever.evaluation import evaluate as module
    from diffretriever.schemas.evaluate import EvaluateJob

    with TemporaryDirectory() as folder:
        searcher = _searcher(folder, made, accelerated=accelerated)
        collection = _collection(Path(folder) / "made-up", made)
        job = EvaluateJob(
            index=searcher.index.uri, collection=collection, output=Path(folder) / "out", top_k=top_k, split="test"
        )
        _warm_up(searcher)
        before, started = peak_mb(), time.process_time()
        with patch.object(module, "open_searcher", lambda *_: searcher):
            module.evaluate_job(job, "benchmark")
        name = f"evaluation{', accelerated' if accelerated else ''}"
        seconds = time.process_time() - started
    return {f"{name}: CPU s": seconds, f"{name}: peak MB above what was there": peak_mb() - before}


def singles(made: dict[str, int], asked: int, *, accelerated: bool) -> dict[str, float]:
    """Return the milliseconds of hybrid queries asked one by one, ten passages with their texts each."""
    with TemporaryDirectory() as folder:
        searcher = _searcher(folder, made, accelerated=accelerated)
        _warm_up(searcher)
        times = []
        for number in range(asked):
            started = time.perf_counter()
            hits = searcher.search([f"query {number % made['queries']}"], k=10, modes=["hybrid"])["hybrid"]
            texts = searcher.index.shown(hits.rows())
            times.append(1e3 * (time.perf_counter() - started))
            assert len(texts) == len(hits[0]), "each passage has its text"
    return {f"one hybrid query{', accelerated' if accelerated else ''}: p50 ms": statistics.median(times)}


def order(ids: int) -> dict[str, float]:
    """Return the CPU seconds that it takes to put so many ids in order, and what that keeps of memory."""
    from diffretriever.index.order import PassageOrder

    names = pa.array([f"passage-{number}" for number in np.random.default_rng(0).permutation(ids)], pa.string())
    batch = pa.RecordBatch.from_arrays([names, pa.array(np.arange(ids, dtype=np.uint64))], ["id", "_rowaddr"])
    fragment = SimpleNamespace(fragment_id=0, physical_rows=ids, count_rows=lambda: ids)
    started = time.process_time()
    made = PassageOrder.of([fragment], [fragment], [batch])
    seconds = time.process_time() - started
    assert made.passages.rows_P is not None, "there is a table"
    kept = made.passages.ids.nbytes + made.passages.rows_P.nbytes + made.numbers_W.nbytes
    return {f"order of {ids:,} ids: CPU s": seconds, f"order of {ids:,} ids: bytes each": kept / ids}


def _searcher(folder: str, made: dict[str, int], *, accelerated: bool) -> Any:
    from diffretriever.collections import Passage
    from diffretriever.index.table import PassageIndex
    from diffretriever.index.writer import Committer, join_columns, text_table, write_block
    from diffretriever.schemas.index import IndexManifest
    from diffretriever.schemas.retriever import MaskedRetriever
    from diffretriever.schemas.search import SearchOptions
    from diffretriever.search.accelerate import complete
    from diffretriever.search.searcher import Searcher

    retriever = MaskedRetriever.model_validate({"backbone": {"source": "x", "dtype": "float32"}, "budget": "q4p4"})
    manifest = IndexManifest(retriever=retriever, weights="w", hidden_size=HIDDEN, vocab_size=VOCAB, created="now")
    index = PassageIndex.create(f"{folder}/index", manifest)
    # In one fragment, as an encode job leaves so few.
    passages = [Passage(f"module.function_{n}", f"title {n}", "some words " * 100) for n in range(made["passages"])]
    table = join_columns(text_table(passages, "c"), _encoded(len(passages), PASSAGE_TERMS, seed=0).to_arrow())
    Committer(index).commit({"all": write_block(index.uri, table)}, [])
    if accelerated:
        complete(index)
    encoder: Any = Encoded(manifest, _encoded(made["queries"], QUERY_TERMS, seed=1))
    return Searcher(index, SearchOptions(index=index.uri), encoder)


def _encoded(texts: int, terms: int, seed: int) -> Any:
    """Draw vectors, and terms of which the first ones are frequent."""
    from diffretriever.vectors.representations import Representations, offsets_of

    rng = np.random.default_rng(seed)
    vectors_NH = rng.standard_normal((texts * SLOTS, HIDDEN)).astype(np.float32)
    vectors_NH /= np.linalg.norm(vectors_NH, axis=1, keepdims=True)
    bags = [np.unique(np.minimum(rng.zipf(1.3, terms) + 100, VOCAB - 1)) for _ in range(texts)]
    ids_T = np.concatenate(bags).astype(np.int32)
    return Representations(
        vectors_MH=vectors_NH.astype(np.float16),
        offsets=np.arange(texts + 1, dtype=np.int64) * SLOTS,
        slot_tokens=np.full(texts * SLOTS, -1, np.int32),
        impact_ids=ids_T,
        impact_weights=rng.gamma(2, size=len(ids_T)).astype(np.float32),
        impact_offsets=offsets_of([len(bag) for bag in bags]),
        n_tokens=np.full(texts, 250, np.int32),
    )


def _collection(folder: Path, made: dict[str, int]) -> str:
    """Write queries, each with one relevant passage; the passages are in the index alone."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").touch()
    lines = (json.dumps({"_id": f"q{number}", "text": f"query {number}"}) for number in range(made["queries"]))
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    judged = (f"q{number}\tmodule.function_{number % made['passages']}\t1" for number in range(made["queries"]))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n", "utf-8")
    return str(folder)


def _warm_up(searcher: Any) -> None:
    """Have everything compiled and loaded."""
    for _ in range(3):
        searcher.search(["query 0"], k=10)


if __name__ == "__main__":
    serve_child({"evaluation": evaluation, "singles": singles, "order": order})

"""The queries of a sweep: encoded once for each K_q on Ray, kept on disk, read back when an index is searched."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from pyarrow import feather
from ray.data import ActorPoolStrategy, DataContext

from diffretriever.collections import Query
from diffretriever.encoders.representations import Representations
from diffretriever.files import whole_file
from diffretriever.pipelines.blocks import pack, unpack
from diffretriever.pipelines.cluster import EncoderPool
from schemas.jobs import RayConfig
from schemas.retriever import RETRIEVER_ADAPTER, NeuralRetriever

_QUERIES_PER_BLOCK = 256
_ARROW: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}


class QueryStore:
    """Encoded queries of every split and K_q, in files named after what they depend on."""

    def __init__(self, folder: Path, queries: dict[str, list[Query]], fingerprint: str) -> None:
        """`queries` by split; `fingerprint` is the encoder's, whatever its budget."""
        self.queries = queries
        self._folder = folder
        self._states = {
            split: _digest([fingerprint, [[q.id, q.text] for q in asked]]) for split, asked in queries.items()
        }

    def state(self, split: str) -> str:
        """Return a text that changes whenever the encoded queries of the split could."""
        return self._states[split]

    def read(self, split: str, budget: int) -> Representations:
        """Return the queries of a split, encoded with K_q = `budget`."""
        return Representations.from_arrow(feather.read_table(self._file(split, budget)))

    def encode(
        self,
        budgets: Sequence[int],
        retriever: NeuralRetriever,
        job: RayConfig,
        pool: EncoderPool,
        say: Callable[[str], None],
    ) -> None:
        """Encode the queries of all splits with every K_q that no attempt has encoded them with yet."""
        missing = [(s, k) for k in budgets for s in self.queries if not self._file(s, k).exists()]
        blocks = {(s, k, start): table for s, k in missing for start, table in self._blocks(s, k)}
        done: dict[tuple[str, int], dict[int, pa.Table]] = {cell: {} for cell in missing}
        names = {json.dumps(key): key for key in blocks}
        packed = [pack(name, blocks[key]) for name, key in names.items()]
        for name, table in _encoded(packed, retriever, job, pool) if packed else ():
            split, budget, start = names[name]
            parts = done[split, budget]
            parts[start] = table
            if len(parts) * _QUERIES_PER_BLOCK >= len(self.queries[split]):
                self._write(split, budget, pa.concat_tables([parts.pop(start) for start in sorted(parts)]))
                say(f"  {len(self.queries[split]):,} queries of {split} encoded with K_q = {budget}")

    def _blocks(self, split: str, budget: int) -> Iterator[tuple[int, pa.Table]]:
        texts = [query.text for query in self.queries[split]]
        for start in range(0, len(texts), _QUERIES_PER_BLOCK):
            block = texts[start : start + _QUERIES_PER_BLOCK]
            yield start, pa.table({"text": block, "budget": pa.array([budget] * len(block), pa.int32())})

    def _write(self, split: str, budget: int, table: pa.Table) -> None:
        path = self._file(split, budget)
        for stale in path.parent.glob(f"q{budget}-*.arrow"):
            stale.unlink()
        with whole_file(path) as stream:
            feather.write_feather(table, stream, compression="lz4")

    def _file(self, split: str, budget: int) -> Path:
        return self._folder / split / "encoded" / f"q{budget}-{self._states[split]}.arrow"


class EncodeWithBudgets:
    """An encoder actor: blocks of query texts with their budgets in, representations out."""

    def __init__(self, retriever_json: str, device: str, threads: int) -> None:
        import torch

        from diffretriever.encoders import load_encoder

        torch.set_num_threads(threads)
        config: NeuralRetriever = RETRIEVER_ADAPTER.validate_json(retriever_json)  # type: ignore[assignment]
        self._encoder = load_encoder(config, device)

    def __call__(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Encode each block."""
        for key, table in unpack(rows):
            texts, budgets = table.column("text").to_pylist(), table.column("budget").to_pylist()
            yield pack(key, self._encoder.encode_queries(texts, budgets).to_arrow())


def _encoded(
    packed: list[pa.Table], retriever: NeuralRetriever, job: RayConfig, pool: EncoderPool
) -> Iterator[tuple[str, pa.Table]]:
    """Yield name and representations of each block, in no order; the model is loaded once an actor."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    # Every row is a whole block.
    context.target_max_block_size = 1
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    size = min(pool.encoders, len(packed))
    found = ray.data.from_arrow(packed).map_batches(
        EncodeWithBudgets,
        fn_constructor_kwargs={
            "retriever_json": retriever.model_dump_json(),
            "device": pool.device,
            "threads": job.threads_per_encoder,
        },
        compute=ActorPoolStrategy(min_size=1 if pool.autoscale else size, max_size=size),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
        **_ARROW,
    )
    for batch in found.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from unpack(batch)


def _digest(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()

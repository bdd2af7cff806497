"""The queries of a sweep: encoded once for each K_q on Ray, kept on disk, read back when an index is searched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from diffretriever.collections import Query
from diffretriever.encoders.representations import Representations
from diffretriever.files import whole_file
from diffretriever.pipelines.cluster import EncoderPool
from diffretriever.pipelines.queries import QUERIES_PER_BLOCK, encode_queries, query_block
from schemas.jobs import RayConfig
from schemas.retriever import NeuralRetriever


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
        blocks = {json.dumps([s, k, start]): table for s, k in missing for start, table in self._blocks(s, k)}
        done: dict[tuple[str, int], dict[int, pa.Table]] = {cell: {} for cell in missing}
        for name, table in encode_queries(blocks, retriever, pool, job.threads_per_encoder):
            split, budget, start = json.loads(name)
            parts = done[split, budget]
            parts[start] = table
            if len(parts) * QUERIES_PER_BLOCK >= len(self.queries[split]):
                self._write(split, budget, pa.concat_tables([parts.pop(start) for start in sorted(parts)]))
                say(f"  {len(self.queries[split]):,} queries of {split} encoded with K_q = {budget}")

    def _blocks(self, split: str, budget: int) -> Iterator[tuple[int, pa.Table]]:
        queries = self.queries[split]
        for start in range(0, len(queries), QUERIES_PER_BLOCK):
            yield start, query_block(queries[start : start + QUERIES_PER_BLOCK], budget)

    def _write(self, split: str, budget: int, table: pa.Table) -> None:
        path = self._file(split, budget)
        for stale in path.parent.glob(f"q{budget}-*.arrow"):
            stale.unlink()
        with whole_file(path) as stream:
            feather.write_feather(table, stream, compression="lz4")

    def _file(self, split: str, budget: int) -> Path:
        return self._folder / split / "encoded" / f"q{budget}-{self._states[split]}.arrow"


def _digest(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()

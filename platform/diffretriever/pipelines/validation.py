"""Measures nDCG@10 of a model in training on a small collection."""

from __future__ import annotations

import tempfile
from pathlib import Path

from diffretriever.collections import open_collection
from diffretriever.collections.records import BadRecord, Passage
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.evaluation.evaluate import search_queries
from diffretriever.evaluation.exclusion import settled_by_index
from diffretriever.evaluation.measures import evaluate
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import BlockWriter, Committer, join_columns, text_table
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.search.searcher import Searcher

MEASURE = "nDCG@10"
_BLOCK_ROWS = 512
_TOP_K = 100


class Validator:
    """Measures on a collection in memory, with the qrels of its split `dev`, or else `test`."""

    def __init__(self, collection: str) -> None:
        """Read the collection.

        Raises:
            ValueError: It cannot be opened, has neither split, or has a bad record.
        """
        opened = open_collection(collection)
        self._split = "dev" if "dev" in opened.splits() else "test"
        self._collection, self._name = collection, opened.name
        self._queries, self._qrels = opened.queries(self._split), opened.qrels(self._split)
        self._passages: list[Passage] = []
        for record in opened.records():
            if isinstance(record, BadRecord):
                raise ValueError(f"{record}: correct the collection to validate on it")
            self._passages.append(record)

    def measure(self, encoder: BackboneEncoder) -> dict[str, float]:
        """Return nDCG@10 by mode with the encoder's current weights; its module must be in evaluation mode."""
        # A new encoder has no cached results of earlier weights.
        fresh = type(encoder)(encoder.config, encoder.backbone, encoder.preparer)
        with tempfile.TemporaryDirectory(prefix="validation-") as folder:
            job = EvaluateJob(
                index=f"{folder}/index",
                collection=self._collection,
                split=self._split,
                output=Path(folder),
                measures=(MEASURE,),
                modes=fresh.config.modes,
                top_k=_TOP_K,
            )
            index = PassageIndex.create(job.index, manifest_of(fresh))
            self._fill(index, fresh)
            job, _ = settled_by_index(job, index, self._queries, self._qrels)
            runs = search_queries(Searcher(index, job.search_options, fresh), self._queries, job)
        return {mode: evaluate(run, self._qrels, [MEASURE]).mean[MEASURE] for mode, run in runs.items()}

    def _fill(self, index: PassageIndex, encoder: BackboneEncoder) -> None:
        receipts: dict[str, str] = {}
        writer = BlockWriter(index.uri)
        for start in range(0, len(self._passages), _BLOCK_ROWS):
            block = self._passages[start : start + _BLOCK_ROWS]
            encoded = encoder.encode_passages([p.title for p in block], [p.text for p in block]).to_arrow()
            receipts[str(start)] = writer.write(join_columns(text_table(block, self._name), encoded))
        Committer(index).commit(receipts, [])

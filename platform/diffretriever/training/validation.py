"""nDCG@10 of the weights in training, on a small collection: encoded, searched and measured as everywhere else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from diffretriever.collections import open_collection
from diffretriever.collections.records import BadRecord, Passage
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.evaluation.conditions import settled_by_index
from diffretriever.evaluation.evaluate import search_queries
from diffretriever.evaluation.measures import EvaluationResult, evaluate
from diffretriever.index.manifest import manifest_of
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import BlockWriter, Committer, beside, text_table
from diffretriever.schemas.evaluate import EvaluateJob
from diffretriever.search.neural import NeuralSearcher

MEASURE = "nDCG@10"
_BLOCK_ROWS = 512
_TOP_K = 100


class Validator:
    """Measures a collection, all of whose passages are held in memory."""

    def __init__(self, collection: str, split: str) -> None:
        """Read the collection.

        Raises:
            ValueError: it cannot be opened, has no such split, or has a record that cannot be used.
        """
        opened = open_collection(collection)
        self._collection, self._split, self._name = collection, split, opened.name
        self.queries, self._qrels = opened.queries(split), opened.qrels(split)
        self.passages: list[Passage] = []
        for record in opened.records():
            if isinstance(record, BadRecord):
                raise ValueError(f"{record}: mend the collection to validate on it")
            self.passages.append(record)

    def measure(self, encoder: BackboneEncoder) -> dict[str, float]:
        """Return nDCG@10 by mode, of the encoder's weights as they are now; its module must be in evaluation mode."""
        return {mode: result.mean[MEASURE] for mode, result in self.results(encoder).items()}

    def results(self, encoder: BackboneEncoder) -> dict[str, EvaluationResult]:
        """Return the same with each query's own nDCG@10."""
        # What the encoder has kept of earlier weights must not be used.
        fresh = type(encoder)(encoder.config, encoder.backbone, encoder.preparer)
        with tempfile.TemporaryDirectory(prefix="validation-") as folder:
            job = EvaluateJob(
                index=f"{folder}/index",
                collection=self._collection,
                split=self._split,
                output=Path(folder),
                measures=(MEASURE,),
                modes=fresh.modes,
                top_k=_TOP_K,
            )
            index = PassageIndex.create(job.index, manifest_of(fresh))
            self._fill(index, fresh)
            job, _ = settled_by_index(job, index, self.queries, self._qrels)
            runs = search_queries(NeuralSearcher(index, fresh, job), self.queries, job)
        return {mode: evaluate(run, self._qrels, [MEASURE]) for mode, run in runs.items()}

    def _fill(self, index: PassageIndex, encoder: BackboneEncoder) -> None:
        receipts: dict[str, str] = {}
        writer = BlockWriter(index.uri)
        for start in range(0, len(self.passages), _BLOCK_ROWS):
            block = self.passages[start : start + _BLOCK_ROWS]
            encoded = encoder.encode_passages([p.title for p in block], [p.text for p in block]).to_arrow()
            receipts[str(start)] = writer.write(beside(text_table(block, self._name), encoded))
        Committer(index).commit(receipts, [])

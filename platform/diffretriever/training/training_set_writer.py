"""Writing a training set: blocks of checked examples in, every passage stored once, the manifest last."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from diffretriever import __version__
from diffretriever.files import write_text
from diffretriever.training.digest_rows import DigestRows
from diffretriever.training.example_blocks import ExampleBlock
from diffretriever.training.training_set import EXAMPLES_FILE, MANIFEST_FILE, PASSAGES_FILE
from schemas.training_data import (
    EXAMPLES_SCHEMA,
    PASSAGES_SCHEMA,
    PrepareTrainingJob,
    TrainingCounts,
    TrainingSetManifest,
    TrainingSource,
)


class TrainingSetWriter:
    """Fills a folder that has no manifest; it does not open before `finish`.

    Memory is bounded by a block and by 100 bytes at the most for every distinct passage and example.
    """

    def __init__(self, folder: Path) -> None:
        """Begin anew, whatever an earlier attempt has left."""
        folder.mkdir(parents=True, exist_ok=True)
        assert not (folder / MANIFEST_FILE).exists(), "a finished training set is never changed"
        self._folder = folder
        self._known_passages, self._known_examples = DigestRows(), DigestRows()
        self._digest = hashlib.blake2b(digest_size=16)
        with ExitStack() as stack:
            self._passages = _open(stack, folder / PASSAGES_FILE, PASSAGES_SCHEMA)
            self._examples = _open(stack, folder / EXAMPLES_FILE, EXAMPLES_SCHEMA)
            self._open_files = stack.pop_all()

    def __enter__(self) -> TrainingSetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_files.close()

    def add(self, block: ExampleBlock) -> TrainingCounts:
        """Append a block's examples but those that are there already; return what became of its records."""
        n_before, digests = len(self._known_examples), block.examples.column("digest").to_pylist()
        # Of examples that repeat each other within the block, the first stands for all.
        is_new = np.zeros(len(digests), bool)
        numbers, first = np.unique(self._known_examples.add(digests), return_index=True)
        is_new[first[numbers >= n_before]] = True
        rows = self._store(block.passages)
        examples = block.examples.filter(pa.array(is_new)).combine_chunks()
        for digest in examples.column("digest").to_pylist():
            self._digest.update(digest)
        if len(examples):
            self._examples.write_table(_with_rows(examples, rows))
        repeated = block.examples.filter(pa.array(~is_new))
        n_positives = int(np.sum(repeated.column("n_positives").to_numpy()))
        n_passages = sum(map(len, repeated.column("passages").to_pylist()))
        return block.counts + TrainingCounts(
            examples=-len(repeated),
            positives=-n_positives,
            negatives=n_positives - n_passages,
            repeated_examples=len(repeated),
        )

    def _store(self, passages: pa.Table) -> np.ndarray:
        """Append the passages that are not there; return the row of each."""
        n_before = len(self._known_passages)
        rows = self._known_passages.add(passages.column("digest").to_pylist())
        new = passages.filter(pa.array(rows >= n_before)).select(PASSAGES_SCHEMA.names)
        if len(new):
            self._passages.write_table(new.combine_chunks())
        return rows

    def finish(
        self, job: PrepareTrainingJob, sources: Sequence[TrainingSource], hold_out: Sequence[TrainingSource]
    ) -> TrainingSetManifest:
        """Close the files and write the manifest, after which the folder is a training set.

        Raises:
            ValueError: there is no example.
        """
        self._open_files.close()
        counts = sum((source.counts for source in sources), TrainingCounts())
        if counts.examples == 0:
            raise ValueError(f"{', '.join(source.name for source in sources)}: no example is left to train on")
        manifest = TrainingSetManifest(
            digest=self._digest.hexdigest(),
            passages=len(self._known_passages),
            counts=counts,
            sources=tuple(sources),
            split=job.split,
            on_bad_input=job.on_bad_input,
            hold_out=tuple(hold_out),
            files={name: (self._folder / name).stat().st_size for name in (EXAMPLES_FILE, PASSAGES_FILE)},
            versions={
                "python": platform.python_version(),
                "diffretriever": __version__,
                "pyarrow": pa.__version__,
                "numpy": np.__version__,
            },
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_text(self._folder / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")
        return manifest


def _open(stack: ExitStack, path: Path, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter:
    return stack.enter_context(pa.ipc.new_file(stack.enter_context(path.open("wb")), schema))


def _with_rows(examples: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return the examples with the block's passages replaced by rows of the training set."""
    lists = examples.column("passages").combine_chunks()
    flat = rows[lists.flatten().to_numpy()]
    passages = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(lists.value_lengths().to_numpy())]).astype(np.int32)), pa.array(flat)
    )
    columns = {name: examples.column(name) for name in EXAMPLES_SCHEMA.names} | {"passages": passages}
    return (
        pa.Table.from_arrays(list(columns.values()), names=EXAMPLES_SCHEMA.names).cast(EXAMPLES_SCHEMA).combine_chunks()
    )

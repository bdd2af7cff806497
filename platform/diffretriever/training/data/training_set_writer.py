"""Writing a training set: blocks of checked examples in, every passage stored once, the manifest last.

Blocks are made by the workers that check records, and written by one process, which knows texts by 128-bit digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.collections.records import BadRecord, Passage
from diffretriever.core.files import write_text
from diffretriever.schemas.training_data import (
    EXAMPLES_SCHEMA,
    PASSAGES_SCHEMA,
    PrepareTrainingJob,
    TrainingCounts,
    TrainingSetManifest,
    TrainingSource,
)
from diffretriever.training.data.examples import Checked, Example, are_in, example_digest, stored_digest, text_key
from diffretriever.training.data.training_set import EXAMPLES_FILE, MANIFEST_FILE, PASSAGES_FILE
from diffretriever.vectors.representations import offsets_of

_DIGEST = pa.field("digest", pa.binary(16), nullable=False)


@dataclass(frozen=True, slots=True)
class ExampleBlock:
    """Examples whose `passages` are rows of the block's own table of passages."""

    examples: pa.Table
    """`EXAMPLES_SCHEMA` and the digest of each example."""
    passages: pa.Table
    """`PASSAGES_SCHEMA` and the digest of each passage; none twice."""
    bad: tuple[BadRecord, ...]
    counts: TrainingCounts
    """Of the records that made this block."""


def make_block(records: Iterable[Checked | BadRecord], held_out: np.ndarray) -> ExampleBlock:
    """Collect checked records, without the texts whose keys are in `held_out` (ascending uint64)."""
    counts = TrainingCounts()
    bad: list[BadRecord] = []
    examples: list[Example] = []
    for record in records:
        if isinstance(record, BadRecord):
            bad.append(record)
            continue
        example, left_out = _without_held_out(record, held_out)
        counts += left_out
        examples += [example] if example is not None else []
    kept = TrainingCounts(
        examples=len(examples),
        positives=sum(len(e.positives) for e in examples),
        negatives=sum(len(e.negatives) for e in examples),
        bad_records=len(bad),
    )
    return ExampleBlock(*_tables(examples), tuple(bad), counts + kept)


def _without_held_out(record: Checked, held_out: np.ndarray) -> tuple[Example | None, TrainingCounts]:
    example, repeated = record.example, TrainingCounts(repeated_passages=record.repeated)
    if not len(held_out):
        return example, repeated
    query_is_out, *passages_are_out = are_in((text_key(example.query), *record.keys), held_out).tolist()
    n_positives = len(example.positives)
    n_out = sum(passages_are_out[:n_positives])
    left_out = repeated + TrainingCounts(
        held_out_examples=int(query_is_out or n_out == n_positives),
        held_out_positives=n_out,
        held_out_negatives=sum(passages_are_out[n_positives:]),
    )
    if left_out.held_out_examples:
        return None, left_out
    keep = [not out for out in passages_are_out]
    positives = tuple(compress(example.positives, keep[:n_positives]))
    negatives = tuple(compress(example.negatives, keep[n_positives:]))
    return Example(example.query_id, example.query, positives, negatives), left_out


def _tables(examples: Sequence[Example]) -> tuple[pa.Table, pa.Table]:
    rows: dict[bytes, int] = {}
    passages: list[Passage] = []
    lists: list[list[int]] = []
    digests: list[bytes] = []
    for example in examples:
        own = [*example.positives, *example.negatives]
        own_digests = [stored_digest(passage) for passage in own]
        for digest, passage in zip(own_digests, own, strict=True):
            if digest not in rows:
                rows[digest] = len(passages)
                passages.append(passage)
        lists.append([rows[digest] for digest in own_digests])
        digests.append(example_digest(example, own_digests))
    example_columns: list[Sequence[object]] = [
        [e.query_id for e in examples],
        [e.query for e in examples],
        [len(e.positives) for e in examples],
        lists,
        digests,
    ]
    passage_columns: list[Sequence[object]] = [
        [p.id for p in passages],
        [p.title for p in passages],
        [p.text for p in passages],
        list(rows),
    ]
    return _table(example_columns, EXAMPLES_SCHEMA), _table(passage_columns, PASSAGES_SCHEMA)


def _table(columns: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    schema = schema.append(_DIGEST)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class TrainingSetWriter:
    """Fills a folder that has no manifest; it does not open before `finish`.

    Memory is bounded by a block and some 200 bytes for every distinct passage and example.
    """

    def __init__(self, folder: Path) -> None:
        """Start from nothing, whatever an earlier attempt has left."""
        folder.mkdir(parents=True, exist_ok=True)
        assert not (folder / MANIFEST_FILE).exists(), "a finished training set is never changed"
        self._folder = folder
        self._rows: dict[bytes, int] = {}
        """Digest → row of each stored passage."""
        self._known: set[bytes] = set()
        """Digests of stored examples."""
        self._digest = hashlib.blake2b(digest_size=16)
        with ExitStack() as stack:
            self._passages = _open(stack, folder / PASSAGES_FILE, PASSAGES_SCHEMA)
            self._examples = _open(stack, folder / EXAMPLES_FILE, EXAMPLES_SCHEMA)
            self._open_files = stack.pop_all()

    def __enter__(self) -> TrainingSetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._open_files.close()

    def add(self, block: ExampleBlock) -> TrainingCounts:
        """Append a block's examples but those that are stored already; return the counts of its records."""
        is_new = []
        for digest in block.examples.column("digest").to_pylist():
            is_new.append(digest not in self._known)
            if is_new[-1]:
                self._known.add(digest)
                self._digest.update(digest)
        rows = self._store(block.passages)
        examples = block.examples.filter(pa.array(is_new, pa.bool_())).combine_chunks()
        if len(examples):
            self._examples.write_table(_with_rows(examples, rows))
        n_positives = pc.sum(examples.column("n_positives")).as_py() or 0
        n_passages = pc.sum(pc.list_value_length(examples.column("passages"))).as_py() or 0
        made = {"examples": len(examples), "positives": n_positives, "negatives": n_passages - n_positives}
        return block.counts.model_copy(update={**made, "repeated_examples": len(is_new) - len(examples)})

    def _store(self, passages: pa.Table) -> np.ndarray:
        """Append the passages that are not there; return the row of each, int64."""
        n_before = len(self._rows)
        digests = passages.column("digest").to_pylist()
        rows = np.array([self._rows.setdefault(digest, len(self._rows)) for digest in digests], np.int64)
        new = passages.filter(pa.array(rows >= n_before)).select(PASSAGES_SCHEMA.names)
        if len(new):
            self._passages.write_table(new.combine_chunks())
        return rows

    def finish(
        self, job: PrepareTrainingJob, sources: Sequence[TrainingSource], hold_out: Sequence[TrainingSource]
    ) -> TrainingSetManifest:
        """Close the files and write the manifest; raises `ValueError` if there is no example."""
        self._open_files.close()
        counts = sum((source.counts for source in sources), TrainingCounts())
        if counts.examples == 0:
            raise ValueError(f"{', '.join(source.name for source in sources)}: no example is left to train on")
        manifest = TrainingSetManifest(
            digest=self._digest.hexdigest(),
            passages=len(self._rows),
            counts=counts,
            sources=tuple(sources),
            split=job.split,
            on_bad_input=job.on_bad_input,
            hold_out=tuple(hold_out),
            files={name: (self._folder / name).stat().st_size for name in (EXAMPLES_FILE, PASSAGES_FILE)},
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
        pa.array(offsets_of(lists.value_lengths().to_numpy()), pa.int32()), pa.array(flat)
    )
    columns = {name: examples.column(name) for name in EXAMPLES_SCHEMA.names} | {"passages": passages}
    return (
        pa.Table.from_arrays(list(columns.values()), names=EXAMPLES_SCHEMA.names).cast(EXAMPLES_SCHEMA).combine_chunks()
    )

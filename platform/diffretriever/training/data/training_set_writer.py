"""Writing a training set: blocks of checked examples in, every passage stored once, the manifest last.

A block is what travels from the workers that check to the one that writes. Texts are known by 128-bit digests, which
are numbered by open addressing in compiled loops: Python objects would take four times the memory.

Legend: N digests looked up, R rows, S slots of the hash table (a power of two, at least twice R).
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from diffretriever import __version__
from diffretriever.collections.records import BadRecord, Passage
from diffretriever.files import write_text
from diffretriever.kernels import kernel
from diffretriever.representations import offsets_of
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

_FIRST_ROWS = 1 << 14

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
    slim = Example(
        query_id=example.query_id,
        query=example.query,
        positives=tuple(compress(example.positives, keep[:n_positives])),
        negatives=tuple(compress(example.negatives, keep[n_positives:])),
        scores=tuple(compress(example.scores, keep)) if example.scores is not None else None,
    )
    return slim, left_out


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
        [e.scores or () for e in examples],
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
        pa.array(offsets_of(lists.value_lengths().to_numpy()), pa.int32()), pa.array(flat)
    )
    columns = {name: examples.column(name) for name in EXAMPLES_SCHEMA.names} | {"passages": passages}
    return (
        pa.Table.from_arrays(list(columns.values()), names=EXAMPLES_SCHEMA.names).cast(EXAMPLES_SCHEMA).combine_chunks()
    )


class DigestRows:
    """Numbers 16-byte digests; 24 to 48 bytes of memory each."""

    def __init__(self) -> None:
        self._count = 0
        self._stored_R2 = np.empty((_FIRST_ROWS, 2), np.uint64)
        self._slots_S = np.full(2 * _FIRST_ROWS, -1, np.int32)

    def __len__(self) -> int:
        return self._count

    def add(self, digests: Sequence[bytes]) -> np.ndarray:
        """Return the row of each digest, int64 [N]; rows from the former length on are new, in the order given."""
        digests_N2 = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
        assert len(digests_N2) == len(digests), "a digest has 16 bytes"
        self._make_room(self._count + len(digests))
        rows_N = np.empty(len(digests), np.int64)
        self._count = _number(digests_N2, self._slots_S, self._stored_R2, self._count, rows_N)
        return rows_N

    def _make_room(self, wanted: int) -> None:
        if wanted <= len(self._stored_R2):
            return
        capacity = 1 << (wanted - 1).bit_length()
        stored_R2 = np.empty((capacity, 2), np.uint64)
        stored_R2[: self._count] = self._stored_R2[: self._count]
        self._stored_R2 = stored_R2
        self._slots_S = np.full(2 * capacity, -1, np.int32)
        _place(self._stored_R2, self._count, self._slots_S)


@kernel()
def _number(digests_N2: np.ndarray, slots_S: np.ndarray, stored_R2: np.ndarray, count: int, rows_N: np.ndarray) -> int:
    """Look digests up, those that are not there get the next rows; return how many rows there are then.

    Args:
        digests_N2: uint64.
        slots_S: int32, a row or -1; written.
        stored_R2: uint64, the digest of each row; written from `count` on.
        count: rows that there are.
        rows_N: int64; written.
    """
    mask = np.uint64(len(slots_S) - 1)
    for n in range(len(digests_N2)):
        first, second = digests_N2[n, 0], digests_N2[n, 1]
        slot = first & mask
        while slots_S[slot] >= 0 and (stored_R2[slots_S[slot], 0] != first or stored_R2[slots_S[slot], 1] != second):
            slot = (slot + np.uint64(1)) & mask
        if slots_S[slot] < 0:
            slots_S[slot] = count
            stored_R2[count, 0] = first
            stored_R2[count, 1] = second
            count += 1
        rows_N[n] = slots_S[slot]
    return count


@kernel()
def _place(stored_R2: np.ndarray, count: int, slots_S: np.ndarray) -> None:
    """Fill empty slots (int32, all -1) with the first `count` rows."""
    mask = np.uint64(len(slots_S) - 1)
    for row in range(count):
        slot = stored_R2[row, 0] & mask
        while slots_S[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots_S[slot] = row

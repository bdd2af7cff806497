"""Writes a training set: workers make blocks of checked examples; one process writes them, then the manifest.

Examples are deduplicated by 128-bit digests.
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

from diffretriever.collections.records import BadRecord
from diffretriever.core.files import write_text
from diffretriever.schemas.training_data import (
    EXAMPLES_SCHEMA,
    PrepareTrainingJob,
    TrainingCounts,
    TrainingSetManifest,
    TrainingSource,
)
from diffretriever.training.data.examples import Checked, Example, are_in, passage_key, text_key
from diffretriever.training.data.training_set import EXAMPLES_FILE, MANIFEST_FILE
from diffretriever.vectors.representations import offsets_of

_BLOCK_SCHEMA = EXAMPLES_SCHEMA.append(pa.field("digest", pa.binary(16), nullable=False))


@dataclass(frozen=True, slots=True)
class ExampleBlock:
    """The examples of a block of records."""

    examples: pa.Table
    """`EXAMPLES_SCHEMA` and the digest of each example."""
    bad: tuple[BadRecord, ...]
    counts: TrainingCounts
    """Counts of rejected and removed records; stored examples are counted when they are written."""


def make_block(records: Iterable[Checked | BadRecord], held_out: np.ndarray) -> ExampleBlock:
    """Make a block of checked records, leaving out texts whose keys are in `held_out` (ascending uint64)."""
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
    return ExampleBlock(_table(examples), tuple(bad), counts + TrainingCounts(bad_records=len(bad)))


def _without_held_out(record: Checked, held_out: np.ndarray) -> tuple[Example | None, TrainingCounts]:
    example, repeated = record.example, TrainingCounts(repeated_passages=record.repeated)
    if not len(held_out):
        return example, repeated
    passages = (*example.positives, *example.negatives)
    keys = (text_key(example.query), *map(passage_key, passages))
    query_is_out, *passages_are_out = are_in(keys, held_out).tolist()
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


def _table(examples: Sequence[Example]) -> pa.Table:
    lists = [(*example.positives, *example.negatives) for example in examples]
    passages = [passage for passages_of_one in lists for passage in passages_of_one]
    texts = [pa.array([getattr(p, name) for p in passages], pa.large_string()) for name in ("id", "title", "text")]
    starts = pa.array(offsets_of([len(passages_of_one) for passages_of_one in lists]), pa.int32())
    list_type = EXAMPLES_SCHEMA.field("passages").type
    structs = pa.StructArray.from_arrays(texts, fields=list(list_type.value_type))
    columns = [
        pa.array([example.query_id for example in examples], pa.large_string()),
        pa.array([example.query for example in examples], pa.large_string()),
        pa.array([len(example.positives) for example in examples], pa.int32()),
        pa.ListArray.from_arrays(starts, structs, list_type),
        pa.array([_digest(example) for example in examples], pa.binary(16)),
    ]
    return pa.Table.from_arrays(columns, schema=_BLOCK_SCHEMA)


def _digest(example: Example) -> bytes:
    parts = [str(len(example.positives)), example.query_id, example.query]
    for passage in (*example.positives, *example.negatives):
        parts += [passage.id, passage.title, passage.text]
    # Lengths, so that different examples have different bytes.
    text = "".join(f"{len(part)}\x1f{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class TrainingSetWriter:
    """Writes a training set to a folder, which can be opened after `finish`.

    Memory: one block and about 100 bytes per example.
    """

    def __init__(self, folder: Path) -> None:
        """Start a new set, overwriting an unfinished one."""
        folder.mkdir(parents=True, exist_ok=True)
        assert not (folder / MANIFEST_FILE).exists(), "a finished training set is never changed"
        self._folder = folder
        self._known: set[bytes] = set()
        """Digests of stored examples."""
        self._digest = hashlib.blake2b(digest_size=16)
        with ExitStack() as stack:
            file = stack.enter_context((folder / EXAMPLES_FILE).open("wb"))
            self._examples = stack.enter_context(pa.ipc.new_file(file, EXAMPLES_SCHEMA))
            self._open_files = stack.pop_all()

    def __enter__(self) -> TrainingSetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._open_files.close()

    def add(self, block: ExampleBlock) -> TrainingCounts:
        """Append a block's new examples and return the counts of its records."""
        is_new = []
        for digest in block.examples.column("digest").to_pylist():
            is_new.append(digest not in self._known)
            if is_new[-1]:
                self._known.add(digest)
                self._digest.update(digest)
        examples = block.examples.filter(pa.array(is_new, pa.bool_())).select(EXAMPLES_SCHEMA.names).combine_chunks()
        if len(examples):
            self._examples.write_table(examples)
        n_positives = pc.sum(examples.column("n_positives")).as_py() or 0
        n_passages = pc.sum(pc.list_value_length(examples.column("passages"))).as_py() or 0
        return block.counts + TrainingCounts(
            examples=len(examples),
            positives=n_positives,
            negatives=n_passages - n_positives,
            repeated_examples=len(is_new) - len(examples),
        )

    def finish(
        self, job: PrepareTrainingJob, sources: Sequence[TrainingSource], hold_out: Sequence[TrainingSource]
    ) -> TrainingSetManifest:
        """Close the file and write the manifest. Raises ValueError if there are no examples."""
        self._open_files.close()
        counts = sum((source.counts for source in sources), TrainingCounts())
        if counts.examples == 0:
            raise ValueError(f"{', '.join(source.name for source in sources)}: no examples left to train on")
        manifest = TrainingSetManifest(
            digest=self._digest.hexdigest(),
            counts=counts,
            sources=tuple(sources),
            split=job.split,
            on_bad_input=job.on_bad_input,
            hold_out=tuple(hold_out),
            size=(self._folder / EXAMPLES_FILE).stat().st_size,
        )
        write_text(self._folder / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")
        return manifest

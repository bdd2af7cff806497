"""A block of checked examples as Arrow tables: what travels from the workers that check to the one that writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import pyarrow as pa

from diffretriever.collections.base import BadRecord, Passage
from diffretriever.training.example_records import Checked, example_digest, stored_digest
from diffretriever.training.examples import Example
from diffretriever.training.text_keys import are_in, text_key
from schemas.training_data import EXAMPLES_SCHEMA, PASSAGES_SCHEMA, TrainingCounts

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

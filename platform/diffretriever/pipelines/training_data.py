"""Training sources to a training set on Ray Data: one reader, checks on all CPUs, one writer.

Reading is a stream that cannot be split (gzip, a join with a corpus), checking is what takes the time, and storing
every passage once needs one place that sees all, the driver. The pieces keep their order, so the result is that of
`training.data.preparation.checked_blocks`, which does the same in one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from diffretriever.collections import BadRecord
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.blocks import pack, unpack
from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.ray_executor import AS_ARROW, read_blocks, tables_of
from diffretriever.progress import Progress
from diffretriever.schemas.settings import RayConfig
from diffretriever.schemas.training_data import PrepareTrainingJob, TrainingCounts, TrainingSetManifest
from diffretriever.training.data.examples import keys_of
from diffretriever.training.data.preparation import (
    Inputs,
    NumberedBlock,
    finished,
    open_inputs,
    pieces_of,
    write_training_set,
)
from diffretriever.training.data.sources import ExampleSource, RawPiece, checked
from diffretriever.training.data.training_set_writer import ExampleBlock, make_block

_CHECK_CPUS = 0.75


def prepare_training(job: PrepareTrainingJob) -> TrainingSetManifest:
    """Make a training set in the Ray session at hand, or in one of its own.

    A job that is killed leaves nothing that opens, and is begun anew by the same command; where that has made its
    training set already, nothing is done.

    Raises:
        ValueError: bad input, another training set in the folder, or no example left.
    """
    inputs = open_inputs(job)
    with WriterLock(str(job.output)):
        done = finished(job, inputs)
        if done is not None:
            return done
        progress = Progress("preparing", None, unit="examples")
        with ray_session(RayConfig(ray_address=job.ray_address)), progress:
            return write_training_set(job, inputs, blocks_on_ray(inputs), progress.update)


def blocks_on_ray(inputs: Inputs) -> Iterator[NumberedBlock]:
    """Read and check on Ray; yield the blocks in the order of the sources."""
    held_out = ray.put(keys_of(inputs.hold_out))
    pieces = read_blocks([partial(_read, inputs.sources)])
    # The dataset's own copy of the settings: others keep theirs.
    pieces.context.execution_options.preserve_order = True
    blocks = pieces.map_batches(_check, fn_kwargs={"held_out": held_out}, num_cpus=_CHECK_CPUS, **AS_ARROW)
    for expected, (number, block) in enumerate(_unpacked(tables_of(blocks))):
        assert number == expected, "Ray keeps the order of blocks"
        yield block


def _read(sources: tuple[ExampleSource, ...]) -> Iterable[pa.Table]:
    for number, (source, piece) in enumerate(pieces_of(sources)):
        yield pack(json.dumps([number, source, piece.file, piece.kind]), piece.records)


def _check(rows: pa.Table, held_out: Any) -> Iterator[pa.Table]:
    """Check the records of each piece."""
    keys: np.ndarray = ray.get(held_out)
    for key, records in unpack(rows):
        number, source, file, kind = json.loads(key)
        block = make_block(checked(RawPiece(file, kind, records)), keys)
        bad = [asdict(record) for record in block.bad]
        about = json.dumps([number, source, bad, block.counts.model_dump()])
        passages = pack(about, block.passages).column("block")
        yield pack(about, block.examples).append_column("passages", passages)


def _unpacked(found: Iterable[pa.Table]) -> Iterator[tuple[int, NumberedBlock]]:
    for rows in found:
        examples = unpack(rows.select(["key", "block"]))
        passages = unpack(rows.select(["key", "passages"]).rename_columns(["key", "block"]))
        for (about, example_table), (_, passage_table) in zip(examples, passages, strict=True):
            number, source, bad, counts = json.loads(about)
            records = tuple(BadRecord(**fields) for fields in bad)
            block = ExampleBlock(example_table, passage_table, records, TrainingCounts(**counts))
            yield number, NumberedBlock(source, block)

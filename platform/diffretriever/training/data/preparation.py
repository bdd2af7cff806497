"""Training sources to a training set, without Ray: the same blocks in the same order, whoever checks them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from diffretriever.collections import BadInputError, BadInputPolicy, BadRecord, Collection, open_collection
from diffretriever.collections.quarantine import quarantine_line, refuse_other_files
from diffretriever.files import cache_dir, exists, put_folder, whole_file
from diffretriever.ledger import refuse_another
from diffretriever.schemas.places import StorePath
from diffretriever.schemas.training_data import PrepareTrainingJob, TrainingCounts, TrainingSetManifest, TrainingSource
from diffretriever.training.data.examples import keys_of
from diffretriever.training.data.sources import ExampleSource, RawPiece, checked, open_source
from diffretriever.training.data.training_set import MANIFEST_FILE, read_manifest
from diffretriever.training.data.training_set_writer import ExampleBlock, TrainingSetWriter, make_block

QUARANTINE_FILE = "quarantine.jsonl"
_LISTED = 5


class Inputs(NamedTuple):
    """What a training set is made from, opened and not yet read."""

    sources: tuple[ExampleSource, ...]
    hold_out: tuple[Collection, ...]

    def described(self) -> tuple[list[TrainingSource], list[TrainingSource]]:
        """Return sources and held-out collections by name and state."""
        return (
            [TrainingSource(name=source.name, state=source.state()) for source in self.sources],
            [TrainingSource(name=collection.name, state=collection.source_state()) for collection in self.hold_out],
        )


class NumberedPiece(NamedTuple):
    """A piece of the source of that number."""

    source: int
    piece: RawPiece


class NumberedBlock(NamedTuple):
    """A block of the source of that number."""

    source: int
    block: ExampleBlock


def open_inputs(job: PrepareTrainingJob) -> Inputs:
    """Open sources and held-out collections; raises `ValueError` for what cannot be opened."""
    sources = tuple(open_source(source, job.split) for source in job.source)
    return Inputs(sources, tuple(open_collection(name) for name in job.hold_out))


def finished(job: PrepareTrainingJob, inputs: Inputs) -> TrainingSetManifest | None:
    """Return the manifest of the training set that this very job has made before, None where none is there.

    Raises:
        ValueError: another one is there.
    """
    if not exists(job.output / MANIFEST_FILE):
        return None
    there = read_manifest(job.output)
    sources, hold_out = inputs.described()
    refuse_another(
        job.output,
        "another training set",
        _made_from(there.sources, there.hold_out, there.split, there.on_bad_input),
        _made_from(sources, hold_out, job.split, job.on_bad_input),
    )
    return there


def _made_from(
    sources: Sequence[TrainingSource], hold_out: Sequence[TrainingSource], split: str, policy: BadInputPolicy
) -> dict[str, object]:
    return {
        "sources": [(source.name, source.state) for source in sources],
        "hold_out": [(source.name, source.state) for source in hold_out],
        "split": split,
        "on_bad_input": policy,
    }


def pieces_of(sources: Sequence[ExampleSource]) -> Iterator[NumberedPiece]:
    """Stream the sources, one after another."""
    for number, source in enumerate(sources):
        for piece in source.pieces():
            yield NumberedPiece(number, piece)


def checked_blocks(inputs: Inputs) -> Iterator[NumberedBlock]:
    """Read and check everything in this process."""
    held_out = keys_of(inputs.hold_out)
    for number, piece in pieces_of(inputs.sources):
        yield NumberedBlock(number, make_block(checked(piece), held_out))


def write_training_set(
    job: PrepareTrainingJob, inputs: Inputs, blocks: Iterable[NumberedBlock], progress: Callable[[int], object]
) -> TrainingSetManifest:
    """Write what `blocks` bring, in their order.

    Args:
        job: where to, and what becomes of bad records.
        inputs: what the blocks are read from.
        blocks: in the order of the sources.
        progress: called with the number of examples of each block.

    Raises:
        BadInputError: a record cannot be used and the job does not set such records aside.
        ValueError: no example is left, or a source changed meanwhile.
    """
    described = inputs.described()
    counts = [TrainingCounts()] * len(inputs.sources)
    with _put_to(job.output) as folder, TrainingSetWriter(folder) as writer:
        with quarantine(job.on_bad_input, folder / QUARANTINE_FILE) as put:
            for number, block in blocks:
                put(block.bad)
                counts[number] += writer.add(block)
                progress(len(block.examples))
        if inputs.described() != described:
            raise ValueError("a source changed while it was read: start again")
        sources = [source.model_copy(update={"counts": n}) for source, n in zip(described[0], counts, strict=True)]
        return writer.finish(job, sources, described[1])


@contextmanager
def _put_to(output: Path | StorePath) -> Iterator[Path]:
    """Give the folder to write a training set in; of one on an object store it is put there if the block succeeds."""
    if isinstance(output, Path):
        yield output
        return
    # A set may be larger than a machine's folder for temporary files.
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="training-set-", dir=cache_dir()) as place:
        folder = Path(place)
        yield folder
        put_folder(folder, output, last=MANIFEST_FILE)


@contextmanager
def quarantine(policy: BadInputPolicy, path: Path | StorePath) -> Iterator[Callable[[Sequence[BadRecord]], None]]:
    """Give what takes bad records: it refuses them, or writes them to a file that appears when all are there.

    The file has a JSON line {file, line, reason, raw} for each and is empty if there are none. It is the job's own: the
    lines of an earlier attempt are replaced.

    Raises:
        ValueError: the file is there and holds something else than bad records.
    """
    if policy == "error":
        yield _refuse
        return
    refuse_other_files(path)
    with whole_file(path) as stream:
        yield lambda bad: stream.writelines(map(quarantine_line, bad))


def _refuse(bad: Sequence[BadRecord]) -> None:
    if not bad:
        return
    listed = [f"  {record}" for record in bad[:_LISTED]] + (["  ..."] if len(bad) > _LISTED else [])
    raise BadInputError(
        "records that cannot be used, the first of which are:\n" + "\n".join(listed) + "\n"
        "Correct them, or leave them out and have them listed with --on-bad-input quarantine."
    )

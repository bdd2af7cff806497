"""Makes a training set from training sources: this process reads and writes, Ray tasks check the records.

Sources are streams that cannot be split, and one writer removes duplicates; blocks keep the sources' order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import ray

from diffretriever.collections import BadInputError, BadInputPolicy, BadRecord, Collection, open_collection
from diffretriever.collections.quarantine import quarantine_line, refuse_other_files
from diffretriever.core.files import cache_dir, exists, put_folder, whole_file
from diffretriever.core.ledger import refuse_another
from diffretriever.core.progress import Progress
from diffretriever.index.writer import WriterLock
from diffretriever.pipelines.cluster import ray_session
from diffretriever.pipelines.tasks import in_tasks
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.training_data import PrepareTrainingJob, TrainingCounts, TrainingSetManifest, TrainingSource
from diffretriever.training.data.examples import keys_of
from diffretriever.training.data.sources import ExampleSource, RawPiece, checked, open_source
from diffretriever.training.data.training_set import MANIFEST_FILE, read_manifest
from diffretriever.training.data.training_set_writer import ExampleBlock, TrainingSetWriter, make_block

QUARANTINE_FILE = "quarantine.jsonl"
_LISTED = 5
_CHECK_CPUS = 0.75


class Inputs(NamedTuple):
    """The inputs of a training set, opened and not yet read."""

    sources: tuple[ExampleSource, ...]
    hold_out: tuple[Collection, ...]

    def described(self) -> tuple[list[TrainingSource], list[TrainingSource]]:
        """Return sources and held-out collections by name and state."""
        return (
            [TrainingSource(name=source.name, state=source.state()) for source in self.sources],
            [TrainingSource(name=collection.name, state=collection.source_state()) for collection in self.hold_out],
        )

    def pieces(self) -> Iterator[tuple[int, RawPiece]]:
        """Yield the pieces of all sources with the number of their source."""
        for number, source in enumerate(self.sources):
            for piece in source.pieces():
                yield number, piece


def prepare_training(job: PrepareTrainingJob) -> TrainingSetManifest:
    """Make a training set on Ray, or return its manifest if the same job has made it.

    A killed job leaves a folder that cannot be opened; run the same command again.

    Raises:
        ValueError: Bad input, another training set in the folder, or no example left.
    """
    inputs = open_inputs(job)
    with WriterLock(str(job.output)):
        done = finished(job, inputs)
        if done is not None:
            return done
        progress = Progress("preparing", None, unit="examples")
        with ray_session(), progress:
            return write_training_set(job, inputs, _blocks(inputs), progress.update)


def open_inputs(job: PrepareTrainingJob) -> Inputs:
    """Open sources and held-out collections; raises `ValueError` if one cannot be opened."""
    sources = tuple(open_source(source, job.split) for source in job.source)
    return Inputs(sources, tuple(open_collection(name) for name in job.hold_out))


def finished(job: PrepareTrainingJob, inputs: Inputs) -> TrainingSetManifest | None:
    """Return the training set's manifest if the same job has made it; None if the folder has none.

    Raises:
        ValueError: The folder has another training set.
    """
    if not exists(job.output / MANIFEST_FILE):
        return None
    manifest = read_manifest(job.output)
    sources, hold_out = inputs.described()
    refuse_another(
        job.output,
        "another training set",
        _inputs_of(manifest.sources, manifest.hold_out, manifest.split, manifest.on_bad_input),
        _inputs_of(sources, hold_out, job.split, job.on_bad_input),
    )
    return manifest


def _inputs_of(
    sources: Sequence[TrainingSource], hold_out: Sequence[TrainingSource], split: str, policy: BadInputPolicy
) -> dict[str, object]:
    return {
        "sources": [(source.name, source.state) for source in sources],
        "hold_out": [(source.name, source.state) for source in hold_out],
        "split": split,
        "on_bad_input": policy,
    }


def _blocks(inputs: Inputs) -> Iterator[tuple[int, ExampleBlock]]:
    held_out = ray.put(keys_of(inputs.hold_out))
    at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    calls = ((number, piece, held_out) for number, piece in inputs.pieces())
    yield from in_tasks(checked_block, calls, cpus=_CHECK_CPUS, at_once=at_once)


def checked_block(number: int, piece: RawPiece, held_out: np.ndarray) -> tuple[int, ExampleBlock]:
    """Return a piece's examples without held-out texts (uint64, ascending keys)."""
    return number, make_block(checked(piece), held_out)


def write_training_set(
    job: PrepareTrainingJob,
    inputs: Inputs,
    blocks: Iterable[tuple[int, ExampleBlock]],
    progress: Callable[[int], object],
) -> TrainingSetManifest:
    """Write blocks, each with its source's number, in order; report each block's examples to `progress`.

    Raises:
        BadInputError: A record is bad and the policy is `error`.
        ValueError: No example is left, or a source has changed meanwhile.
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
    if isinstance(output, Path):
        yield output
        return
    # A set may be larger than a node's folder for temporary files.
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="training-set-", dir=cache_dir()) as temporary:
        folder = Path(temporary)
        yield folder
        put_folder(folder, output, last=MANIFEST_FILE)


@contextmanager
def quarantine(policy: BadInputPolicy, path: Path | StorePath) -> Iterator[Callable[[Sequence[BadRecord]], None]]:
    """Yield a function that takes bad records: it raises, or writes them to a file at the end.

    The file has a JSON line {file, line, reason, raw} per record, and replaces that of an earlier attempt.

    Raises:
        ValueError: The path is another kind of file.
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

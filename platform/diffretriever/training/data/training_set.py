"""A prepared training set: an immutable folder of `examples.arrow` (memory-mapped) and `manifest.json`.

Sampling has no state: row, epoch and seed determine a group. A node downloads a set on an object store once, into its
cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from diffretriever.collections.records import Passage
from diffretriever.core.files import AnyLocation, exists, fetched_folder, read_model
from diffretriever.schemas.locations import parse_location
from diffretriever.schemas.training_data import TrainingSetManifest
from diffretriever.training.data.examples import Example, Group, passage_key
from diffretriever.training.data.seeds import draws, permutation

MANIFEST_FILE = "manifest.json"
EXAMPLES_FILE = "examples.arrow"

# Number of random rows to try before all rows in sequence.
_ROWS_DRAWN = 64


class TrainingSet:
    """Examples by row, and the candidates of a training step. Unpickling opens the set again."""

    def __init__(self, location: AnyLocation, folder: Path, manifest: TrainingSetManifest) -> None:
        """Map the files in `folder`, the local copy of `location`. Use `open` instead."""
        self.location, self.folder = location, folder
        self.manifest = manifest
        self.digest = manifest.digest
        file = folder / EXAMPLES_FILE
        try:
            self._examples: pa.Table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        except pa.ArrowException as error:
            raise ValueError(
                f"{file}: damaged ({error}): remove its folder and prepare the training set again"
            ) from error

    @classmethod
    def open(cls, location: AnyLocation) -> TrainingSet:
        """Open a training set, local or on an object store.

        Raises:
            ValueError: The training set is missing, incomplete or damaged.
        """
        manifest = read_manifest(location)
        path = parse_location(location)
        folder = path if isinstance(path, Path) else fetched_folder(path, [EXAMPLES_FILE])
        file = folder / EXAMPLES_FILE
        if not file.is_file() or file.stat().st_size != manifest.size:
            raise ValueError(f"{file}: missing or truncated: remove its folder and prepare the training set again")
        return cls(location, folder, manifest)

    def __reduce__(self) -> tuple[object, ...]:
        return TrainingSet.open, (self.location,)

    def __len__(self) -> int:
        return len(self._examples)

    def example(self, row: int) -> Example:
        """Return the example of a row, from 0 to len - 1."""
        stored = self._read(row)
        passages = tuple(stored.passage(number) for number in range(len(stored.passages)))
        return Example(stored.query_id, stored.query, passages[: stored.positives], passages[stored.positives :])

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Return the order of rows in an epoch, int64 [len]."""
        return permutation(len(self), "order", seed, epoch)

    def group(self, row: int, *, epoch: int, negatives: int, seed: int) -> Group:
        """Return one positive of a row and `negatives` other passages for an epoch, counted from 0.

        Epochs cycle through the positives and through the hard negatives in a fixed order. If a row has too few hard
        negatives, positives of rows with other queries are added. Query id, epoch and seed determine the result.

        Raises:
            ValueError: The whole training set has too few passages.
        """
        stored = self._read(row)
        hard = len(stored.passages) - stored.positives
        positive = (int(draws(1, "positive", stored.query_id, seed)[0] >> np.uint64(1)) + epoch) % stored.positives
        taken = min(negatives, hard)
        indices = (epoch * negatives + np.arange(taken)) % max(hard, 1)
        order = permutation(hard, "negatives", stored.query_id, seed)
        chosen = [positive, *(stored.positives + order[indices]).tolist()]
        passages = [stored.passage(number) for number in chosen]
        if taken < negatives:
            passages += self._random_negatives(row, negatives - taken, f"{stored.query_id}\x1f{seed}\x1f{epoch}")
        answers = tuple(passage_key(stored.passage(number)) for number in range(stored.positives))
        return Group(stored.query_id, stored.query, tuple(passages), answers)

    def _random_negatives(self, row: int, count: int, name: str) -> list[Passage]:
        example = self.example(row)
        passages = (*example.positives, *example.negatives)
        ids, keys = {passage.id for passage in passages}, {passage_key(passage) for passage in passages}
        drawn: list[Passage] = []
        for other, draw in self._random_rows(name):
            stored = self._read(other)
            if other == row or stored.query == example.query:
                continue
            passage = stored.passage(draw % stored.positives)
            key = passage_key(passage)
            if passage.id in ids or key in keys:
                continue
            ids.add(passage.id)
            keys.add(key)
            drawn.append(passage)
            if len(drawn) == count:
                return drawn
        raise ValueError(
            f"{self.location}: too few passages for {count} more negatives of query '{example.query_id}': mine "
            "negatives with `python jobs/mine_negatives.py`, or train with fewer"
        )

    def _random_rows(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield random rows, each with a random number, and then all rows once."""
        for draw in draws(_ROWS_DRAWN, "borrowed", name).tolist():
            yield (draw >> 32) % len(self), draw & 0xFFFFFFFF
        start = int(draws(1, "start", name)[0] % np.uint64(len(self)))
        for step in range(len(self)):
            yield (start + step) % len(self), step

    def _read(self, row: int) -> _Row:
        query_id, query, positives, passages = (column[row] for column in self._examples.columns)
        return _Row(query_id.as_py(), query.as_py(), positives.as_py(), passages.values)


class _Row(NamedTuple):
    query_id: str
    query: str
    positives: int
    """Number of positives."""
    passages: pa.StructArray

    def passage(self, number: int) -> Passage:
        return Passage(**self.passages[number].as_py())


def read_manifest(location: AnyLocation) -> TrainingSetManifest:
    """Return the manifest of a training set. Raises ValueError if it is missing or damaged."""
    path = parse_location(location) / MANIFEST_FILE
    try:
        manifest = read_model(path, TrainingSetManifest, "prepare the training set again")
    except (FileNotFoundError, NotADirectoryError):
        state = "incomplete" if exists(parse_location(location) / EXAMPLES_FILE) else "no training set"
        raise ValueError(
            f"{location}: {state}, {MANIFEST_FILE} is missing: run jobs/prepare_training.py to make it"
        ) from None
    return manifest

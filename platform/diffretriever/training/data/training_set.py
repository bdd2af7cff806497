"""The prepared form of training data: memory-mapped, immutable, and sampled by counters instead of states.

A folder of `passages.arrow`, `examples.arrow` (schemas/training_data.py) and `manifest.json`, which is written last.
What a row, an epoch and a seed give depends on nothing else, so any number of workers, in any order, see the same.
Columns are read a row at a time from the mapped files, without Arrow's cost for a value. Of a set on an object store
those files are a copy in the cache, which a machine fetches once.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from diffretriever.collections.records import Passage
from diffretriever.files import AnyPlace, cache_dir, exists, locked, open_input, read_model, whole_folder
from diffretriever.schemas.places import StorePath, as_place
from diffretriever.schemas.training_data import TrainingSetManifest
from diffretriever.training.data.examples import Example, Group, passage_key
from diffretriever.training.data.seeds import draws, permutation

MANIFEST_FILE = "manifest.json"
EXAMPLES_FILE = "examples.arrow"
PASSAGES_FILE = "passages.arrow"

_COPIED_BYTES = 8 << 20
# After so many draws in vain, all rows are tried in turn.
_ROWS_DRAWN = 64


class TrainingSet:
    """Examples by row, and what a training step takes of them. Picklable: it is opened again where it arrives."""

    def __init__(self, place: AnyPlace, folder: Path, manifest: TrainingSetManifest) -> None:
        """Map the files in `folder`, which are those of `place`, with that manifest; use `open`."""
        self.place, self.folder = place, folder
        self.manifest = manifest
        self.digest = manifest.digest
        examples, passages = _open_batches(folder / EXAMPLES_FILE), _open_batches(folder / PASSAGES_FILE)
        self._rows, self._passage_rows = _Rows(examples), _Rows(passages)
        self._query_ids, self._queries = _TextColumn(examples, "query_id"), _TextColumn(examples, "query")
        self._n_positives = [batch.column("n_positives").to_numpy() for batch in examples]
        self._lists, self._scores = _ListColumn(examples, "passages"), _ListColumn(examples, "scores")
        self._ids, self._titles, self._texts = (_TextColumn(passages, name) for name in ("id", "title", "text"))

    @classmethod
    def open(cls, place: AnyPlace) -> TrainingSet:
        """Open a training set, local or on an object store.

        Raises:
            ValueError: none is there, it is incomplete or damaged, or of a newer layout; the message says what to do.
        """
        manifest = read_manifest(place)
        found = as_place(place)
        folder = found if isinstance(found, Path) else _fetched(found, manifest)
        if broken := _broken_file(folder, manifest):
            raise ValueError(f"{broken}: missing or cut short: remove {place} and prepare the training set again")
        return cls(place, folder, manifest)

    def __reduce__(self) -> tuple[object, ...]:
        return TrainingSet.open, (self.place,)

    def __len__(self) -> int:
        return len(self._rows)

    def example(self, row: int) -> Example:
        """Return the example of a row, 0 to len - 1."""
        place = self._rows.find(row)
        passages = [self._passage(int(number)) for number in self._lists[place]]
        n_positives = int(self._n_positives[place[0]][place[1]])
        return Example(
            query_id=self._query_ids[place],
            query=self._queries[place],
            positives=tuple(passages[:n_positives]),
            negatives=tuple(passages[n_positives:]),
            scores=tuple(self._scores[place].tolist()) or None,
        )

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Return the order of rows in an epoch, int64 [len], each row once."""
        return permutation(len(self), "order", seed, epoch)

    def group(self, row: int, *, epoch: int, negatives: int, seed: int) -> Group:
        """Return one positive of a row and `negatives` passages that are none.

        Determined by the query's id, `epoch` and `seed`. The positives take turns from epoch to epoch. The hard
        negatives are put in an order once, and an epoch takes the next ones in it, from the start again after the last.
        Where there are fewer than asked for, positives of other rows fill up: none that this row has, none twice, none
        of a row with the same query.

        Args:
            row: of the set.
            epoch: counted from 0.
            negatives: how many passages besides the positive.
            seed: of the training.

        Raises:
            ValueError: there are not enough passages in the whole training set.
        """
        place = self._rows.find(row)
        query_id, numbers = self._query_ids[place], self._lists[place]
        n_positives = int(self._n_positives[place[0]][place[1]])
        n_hard = len(numbers) - n_positives
        positive = (int(draws(1, "positive", query_id, seed)[0] >> np.uint64(1)) + epoch) % n_positives
        taken = min(negatives, n_hard)
        turn = (epoch * negatives + np.arange(taken)) % max(n_hard, 1)
        chosen = [positive, *(n_positives + permutation(n_hard, "negatives", query_id, seed)[turn]).tolist()]
        passages = [self._passage(int(numbers[i])) for i in chosen]
        scores = self._scores[place]
        if taken < negatives:
            own = [self._passage(int(number)) for number in numbers]
            passages += self._borrowed(row, own, negatives - taken, f"{query_id}\x1f{seed}\x1f{epoch}")
        complete = len(scores) > 0 and taken == negatives
        return Group(
            query_id=query_id,
            query=self._queries[place],
            passages=tuple(passages),
            scores=tuple(scores[chosen].tolist()) if complete else None,
            answers=tuple(passage_key(self._passage(int(number))) for number in numbers[:n_positives]),
        )

    def _borrowed(self, row: int, own: list[Passage], wanted: int, name: str) -> list[Passage]:
        home = self._rows.find(row)
        ids, keys = {passage.id for passage in own}, {passage_key(passage) for passage in own}
        found: list[Passage] = []
        for other, draw in self._other_rows(name):
            place = self._rows.find(other)
            if other == row or self._queries[place] == self._queries[home]:
                continue
            n_positives = int(self._n_positives[place[0]][place[1]])
            passage = self._passage(int(self._lists[place][draw % n_positives]))
            key = passage_key(passage)
            if passage.id in ids or key in keys:
                continue
            ids.add(passage.id)
            keys.add(key)
            found.append(passage)
            if len(found) == wanted:
                return found
        raise ValueError(
            f"{self.place}: too few passages for {wanted} more negatives of query '{self._query_ids[home]}': mine "
            "negatives with `python jobs/mine_negatives.py`, or train with fewer"
        )

    def _other_rows(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield rows by chance, each with a draw, and then all there are, each once."""
        for draw in draws(_ROWS_DRAWN, "borrowed", name).tolist():
            yield (draw >> 32) % len(self), draw & 0xFFFFFFFF
        start = int(draws(1, "start", name)[0] % np.uint64(len(self)))
        for step in range(len(self)):
            yield (start + step) % len(self), step

    def _passage(self, number: int) -> Passage:
        place = self._passage_rows.find(number)
        return Passage(self._ids[place], self._titles[place], self._texts[place])


def read_manifest(place: AnyPlace) -> TrainingSetManifest:
    """Return what a training set says of itself; raises `ValueError` as `TrainingSet.open` says."""
    path = as_place(place) / MANIFEST_FILE
    try:
        manifest = read_model(path, TrainingSetManifest, "prepare the training set again")
    except (FileNotFoundError, NotADirectoryError):
        state = "incomplete" if exists(as_place(place) / EXAMPLES_FILE) else "no training set"
        raise ValueError(
            f"{place}: {state}, {MANIFEST_FILE} is not there: make it with jobs/prepare_training.py"
        ) from None
    return manifest


def _fetched(place: StorePath, manifest: TrainingSetManifest) -> Path:
    """Return the copy of a set on an object store that this machine's cache holds, fetched if it is not there.

    Workers of one machine wait for the first of them, which fetches it.
    """
    copy = cache_dir() / "training-sets" / manifest.digest
    with locked(copy.with_suffix(".lock")):
        if copy.is_dir() and not _broken_file(copy, manifest):
            return copy
        shutil.rmtree(copy, ignore_errors=True)
        with whole_folder(copy) as folder:
            for name in manifest.files:
                with open_input(place / name) as source, (folder / name).open("wb") as sink:
                    shutil.copyfileobj(source, sink, _COPIED_BYTES)
            if broken := _broken_file(folder, manifest):
                raise ValueError(f"{place}/{broken.name}: missing or cut short: prepare the training set again")
    return copy


def _broken_file(folder: Path, manifest: TrainingSetManifest) -> Path | None:
    """Return a file that is not as long as the manifest says."""
    for name, size in manifest.files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            return file
    return None


def _open_batches(path: Path) -> list[pa.RecordBatch]:
    """Map an Arrow IPC file and return its batches, none of them empty.

    Raises:
        ValueError: it is no such file, or a damaged one.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except pa.ArrowException as error:
        raise ValueError(f"{path}: damaged ({error}): remove its folder and prepare the training set again") from error


class _Rows:
    """Where each row of a file is: in which batch, and where in that."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._starts = [0]
        for batch in batches:
            self._starts.append(self._starts[-1] + len(batch))

    def __len__(self) -> int:
        return self._starts[-1]

    def find(self, row: int) -> tuple[int, int]:
        """Return batch and place of a row; raises `IndexError` for one that is not there."""
        if not 0 <= row < self._starts[-1]:
            raise IndexError(f"row {row} of {self._starts[-1]}")
        batch = bisect_right(self._starts, row) - 1
        return batch, row - self._starts[batch]


class _TextColumn:
    """A column of large strings without nulls."""

    def __init__(self, batches: Sequence[pa.RecordBatch], name: str) -> None:
        self._offsets, self._bytes = [], []
        for batch in batches:
            _, offsets, data = batch.column(name).buffers()
            self._offsets.append(np.frombuffer(offsets, np.int64, len(batch) + 1))
            self._bytes.append(memoryview(data if data is not None else b""))

    def __getitem__(self, place: tuple[int, int]) -> str:
        batch, row = place
        start, end = self._offsets[batch][row : row + 2]
        return str(self._bytes[batch][start:end], "utf-8")


class _ListColumn:
    """A column of lists of numbers without nulls."""

    def __init__(self, batches: Sequence[pa.RecordBatch], name: str) -> None:
        columns = [batch.column(name) for batch in batches]
        self._offsets = [column.offsets.to_numpy() for column in columns]
        self._values = [column.values.to_numpy() for column in columns]

    def __getitem__(self, place: tuple[int, int]) -> np.ndarray[Any, Any]:
        batch, row = place
        start, end = self._offsets[batch][row : row + 2]
        return self._values[batch][start:end]

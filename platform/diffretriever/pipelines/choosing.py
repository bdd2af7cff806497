"""Choosing what to encode: a collection is scanned part by part, and compared with what the indexes hold.

Meanwhile machines for the encoders are waited for. Encoding itself begins after the scan, for one bad record may end
the job; and a scan takes so little beside encoding that no more is to be gained: docs/decisions.md has the figures.

Legend: I indexes, N passages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diffretriever.collections import Collection, Passage
from diffretriever.collections.keys import KEY, KeySet
from diffretriever.collections.scanning import PartScan, scan_part
from diffretriever.files import is_local
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.cluster import EncoderPool, cpus_here, result_of
from diffretriever.schemas.encode import EncodeJob

_CONFLICTS_NAMED = 5
_ROWS_AT_ONCE = 65_536
_SCAN_CPUS = 0.5
# So that no more than these wait for an earlier one.
_SCANS_AHEAD = 64


def scan_parts(collection: Collection, most_bad: int | None) -> Iterator[PartScan]:
    """Scan the parts of a collection in Ray tasks, where its files are; a single part right here.

    Args:
        collection: whose parts.
        most_bad: how many bad records of a part are shown, None for all.
    """
    parts = collection.parts()
    if len(parts) == 1:
        yield scan_part(collection, parts[0], most_bad)
        return
    options: dict[str, Any] = {"num_cpus": _SCAN_CPUS}
    if is_local(collection.place()):
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": cpus_here(_SCAN_CPUS), "scheduling_strategy": here}
    task = ray.remote(scan_part).options(**options)
    left = iter(parts)
    running = [task.remote(collection, part, most_bad) for part in islice(left, _SCANS_AHEAD)]
    while running:
        yield result_of(running.pop(0))
        running += [task.remote(collection, part, most_bad) for part in islice(left, 1)]


@dataclass
class PassageSelection:
    """Decides on each passage of a collection: it is encoded if any of the indexes lacks it."""

    job: EncodeJob
    present: Sequence[KeySet]
    """What each index holds."""
    already_there: int = 0
    skipped: int = 0
    replaced: int = 0
    conflicts: int = 0
    first_conflicts: list[int] = field(default_factory=list)
    """Which of all passages that were asked about."""
    asked: int = 0
    keys: list[np.ndarray] = field(default_factory=list)
    """Those that were asked about, kept for a job that syncs."""

    def __call__(self, keys_N: np.ndarray) -> np.ndarray:
        """Return bool [N]: which passages to encode; and count them all."""
        has_id_IN, same_IN = (
            np.array(each) for each in zip(*(held.compare(keys_N) for held in self.present), strict=True)
        )
        changed_N = (has_id_IN & ~same_IN).any(0)
        missing_N: np.ndarray = np.logical_not(same_IN.all(0))
        self.already_there += int((~missing_N).sum())
        n_changed = int(changed_N.sum())
        if self.job.on_existing == "replace":
            self.replaced += n_changed
            wanted_N = missing_N
        else:
            wanted_N = missing_N & ~changed_N
            self.skipped += n_changed if self.job.on_existing == "skip" else 0
        if self.job.on_existing == "error":
            self.conflicts += n_changed
            room = _CONFLICTS_NAMED - len(self.first_conflicts)
            self.first_conflicts += (np.flatnonzero(changed_N)[:room] + self.asked).tolist()
        self.asked += len(keys_N)
        if self.job.sync:
            self.keys.append(keys_N)
        return wanted_N

    def gone(self, index: PassageIndex, collection: str) -> list[str]:
        """Return the ids that an index holds of a collection, by its name, and that were not asked about."""
        asked = KeySet(np.concatenate([np.zeros(0, KEY), *self.keys]))
        held = (
            batch.filter(pc.equal(batch.column("collection"), collection)).column("id").to_pylist()
            for batch in index.batches(["id", "collection"], _ROWS_AT_ONCE)
        )
        return [
            passage_id
            for ids in held
            for passage_id, is_there in zip(ids, asked.has_ids(ids).tolist(), strict=True)
            if not is_there
        ]

    def count_held(self, ids: Sequence[str]) -> int:
        """Return how many of some passages any index held, with whatever text."""
        return int(np.array([held.has_ids(ids) for held in self.present]).any(0).sum())

    def refuse_conflicts(self, asked: Iterator[Passage]) -> None:
        """Raise `ValueError` if passages changed and the job does not say what to do with them.

        Args:
            asked: the passages that were asked about, in order.
        """
        if self.conflicts == 0:
            return
        wanted = set(self.first_conflicts)
        ids = [passage.id for number, passage in enumerate(islice(asked, max(wanted) + 1)) if number in wanted]
        names = ", ".join(f"'{i}'" for i in ids) + (", …" if self.conflicts > _CONFLICTS_NAMED else "")
        raise ValueError(
            f"{self.conflicts} passages are in {self.job.index} with another text or other metadata ({names}): say "
            "--on-existing replace to replace such passages, or --on-existing skip to leave them as they are"
        )


class MachinesAhead:
    """Has the cluster add machines before encoders start there: actors that do nothing take the room of encoders.

    They leave with the block. No tasks: Ray may abort the process that cancels a task at the moment that it ends.
    """

    def __init__(self, pool: EncoderPool) -> None:
        self._pool = pool
        self._waiting: list[Any] = []

    def __enter__(self) -> MachinesAhead:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._waiting:
            # The job's Ray may have ended.
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)

    def ask(self, encoders: int) -> None:
        """Ask for room for so many encoders, or for as many as the pool has, where machines can be added.

        The task that describes the encoder asks for the room of the first.
        """
        if not self._pool.autoscale:
            return
        room = {"num_cpus": self._pool.cpus, "num_gpus": self._pool.gpus}
        for _ in range(len(self._waiting) + 1, min(encoders, self._pool.encoders)):
            self._waiting.append(ray.remote(_Nothing).options(**room).remote())


class _Nothing: ...

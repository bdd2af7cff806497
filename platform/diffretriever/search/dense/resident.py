"""The codes of a shard in a device's memory: copied once, scored there for all queries, and only candidates come back.

What does not fit beside the rest of a GPU is copied anew in each pass, piece by piece, once for all queries of it.
Searches of one process share what lies there: another version of the index, or a filter, mostly has the same fragments.

Legend: Q queries, P passages of a piece, F lower bounds kept of a query, C candidates.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from weakref import WeakValueDictionary

import numpy as np
import torch

from diffretriever.representations import Representations, offsets_of, runs
from diffretriever.scoring.halves import DeviceCodes, HalfQueries
from diffretriever.scoring.maxsim import Codes, Shortlist
from diffretriever.search.dense.codes import Segment

_PIECE_BYTES = 1 << 30
_SHARE = 0.75
"""Of a device's memory, at most, with all that is there already: encoders need room for their batches."""
_CELL_BYTES = 32
"""What a query and a passage take while candidates are chosen: score, bounds, and two numbers where it is chosen."""
_PASSAGE_BYTES = 8
"""Two bounds of a passage."""
_shared: WeakValueDictionary[Hashable, DeviceCodes] = WeakValueDictionary()
"""The pieces that some search of this process keeps, by `_Piece.key`."""


def resident_codes(segments: Sequence[Segment], device: torch.device, memory_mb: int) -> ResidentCodes | None:
    """Copy the codes of segments to a device; None where that is the processor, whose kernels read them as they lie.

    Args:
        segments: whose passages are numbered through in order, deleted ones included.
        device: where to.
        memory_mb: MiB that scores may take there beside the codes.
    """
    if device.type == "cpu":
        return None
    found = ResidentCodes(segments, device, memory_mb)
    found.load()
    return found


class ResidentCodes:
    """Finds, by codes on a device, what can be among the best passages of queries."""

    def __init__(self, segments: Sequence[Segment], device: torch.device, memory_mb: int) -> None:
        """As `resident_codes`; nothing is copied yet."""
        self._device = device
        self._pieces = list(_pieces(segments))
        largest = max((len(piece) for piece in self._pieces), default=0)
        self._queries_at_once = max(1, (memory_mb << 20) // (_CELL_BYTES * max(1, largest)))
        self._kept: dict[int, DeviceCodes] = {}

    @property
    def bytes(self) -> int:
        """Memory that all codes take on the device."""
        return sum(piece.bytes for piece in self._pieces)

    @property
    def fits(self) -> bool:
        """Whether all codes stay on the device, so that a further pass copies nothing."""
        return len(self._staying) == len(self._pieces)

    @cached_property
    def _staying(self) -> set[int]:
        """The numbers of the pieces that stay: all, or those for which there is room beside one that does not."""
        needed = {
            number: 0 if piece.key(self._device) in _shared else piece.bytes
            for number, piece in enumerate(self._pieces)
        }
        room = room_on(self._device)
        if sum(needed.values()) > room:
            room -= max(needed.values())
        ends = np.cumsum([*needed.values()])
        return {number for number, size in needed.items() if not size or ends[number] <= room}

    def load(self) -> None:
        """Copy what stays, so that the first pass need not."""
        for number in self._staying:
            self._on_device(number)

    def shortlists(self, queries: Representations, k: int) -> list[Shortlist]:
        """Return for each query the passages that can be among its best k, in one pass over the codes."""
        starts = range(0, len(queries), self._queries_at_once)
        asked = [_Asked(_part(queries, start, start + self._queries_at_once), k, self._device) for start in starts]
        for number, piece in enumerate(self._pieces):
            codes, live_P = self._on_device(number), torch.from_numpy(piece.live_P).to(self._device)
            for some in asked:
                some.look_at(codes, live_P, piece.start)
        return [shortlist for some in asked for shortlist in some.shortlists()]

    def _on_device(self, number: int) -> DeviceCodes:
        if number in self._kept:
            return self._kept[number]
        key = self._pieces[number].key(self._device)
        codes = _shared.get(key)
        if codes is None:
            codes = self._pieces[number].copy(self._device)
        if number in self._staying:
            self._kept[number] = _shared[key] = codes
        return codes


class _Asked:
    """Some queries in a pass, and what has been found for them so far."""

    def __init__(self, queries: Representations, k: int, device: torch.device) -> None:
        self._queries, self._k = HalfQueries(queries.vectors_MH, queries.offsets, device), k
        self._lower_QF = torch.empty(len(queries), 0, device=device)
        nothing = np.empty(0, np.float32)
        self._found = [(np.empty(0, np.int64), np.empty(0, np.int64), nothing, nothing)]

    def _floor(self) -> torch.Tensor:
        """Return [Q, 1]: the least that the k-th best of the passages so far can score; -inf while there are fewer."""
        if self._lower_QF.shape[1] < self._k:
            return self._lower_QF.new_full((len(self._queries), 1), -torch.inf)
        return self._lower_QF[:, -1:]

    def look_at(self, codes: DeviceCodes, live_P: torch.Tensor, start: int) -> None:
        """Note which of some passages can be among the best k of those so far.

        Args:
            codes: of P passages.
            live_P: bool, False for passages that are not to be found; anything may be in their codes.
            start: number of the first one.
        """
        scores_QP = self._queries.scores(codes).masked_fill_(~live_P, -torch.inf)
        slack_QP = self._queries.slack(codes).masked_fill_(~live_P, 0)
        lower_QP = scores_QP - slack_QP
        best_QF = lower_QP.topk(min(self._k, len(codes)), dim=1).values
        lower_QF = torch.cat([self._lower_QF, best_QF], dim=1)
        self._lower_QF = lower_QF.topk(min(self._k, lower_QF.shape[1]), dim=1).values
        upper_QP = scores_QP.add_(slack_QP)
        query_C, passage_C = ((upper_QP >= self._floor()) & (upper_QP > -torch.inf)).nonzero(as_tuple=True)
        least_C, most_C = (bound_QP[query_C, passage_C].cpu().numpy() for bound_QP in (lower_QP, upper_QP))
        self._found.append((query_C.cpu().numpy(), passage_C.cpu().numpy() + start, least_C, most_C))

    def shortlists(self) -> list[Shortlist]:
        """Return for each query what is left by the floor that all passages have set."""
        query_C, numbers_C, least_C, most_C = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        kept = np.flatnonzero(most_C >= self._floor().cpu().numpy()[query_C, 0])
        # Pieces come in the order of their passages, so that each query's stay ascending.
        order = kept[np.argsort(query_C[kept], kind="stable")]
        borders = np.searchsorted(query_C[order], np.arange(len(self._queries) + 1))
        columns = [numbers_C[order], least_C[order], most_C[order]]
        return [Shortlist(*(column[a:b] for column in columns)) for a, b in pairwise(borders)]


@dataclass(frozen=True)
class _Piece:
    """A run of a segment's passages."""

    segment: Segment
    passages: slice
    start: int
    """The number of the first one among the passages of all segments."""

    def __len__(self) -> int:
        return int(self.passages.stop - self.passages.start)

    @property
    def _rows(self) -> slice:
        offsets = self.segment.slots.vectors.offsets
        return slice(int(offsets[self.passages.start]), int(offsets[self.passages.stop]))

    @property
    def bytes(self) -> int:
        """Memory that its codes take on a device."""
        rows = self._rows
        return (rows.stop - rows.start) * _vector_bytes(self.segment) + len(self) * _PASSAGE_BYTES

    @property
    def live_P(self) -> np.ndarray:  # noqa: N802 (an array)
        """Which of its passages are still in the table."""
        return self.segment.live_P[self.passages]

    def key(self, device: torch.device) -> tuple[str, int, int, int, torch.device]:
        """Return what a piece of equal codes, on this device, has alike."""
        # Files made after a deletion leave rows out that others of the same fragment have.
        rows = hash(self.segment.codes.rows_P.tobytes())
        return self.segment.folder.place, rows, self.passages.start, self.passages.stop, device

    def copy(self, device: torch.device) -> DeviceCodes:
        """Return its codes, copied to a device."""
        codes, rows, own = self.segment.slots, self._rows, self.passages
        offsets = codes.vectors.offsets[own.start : own.stop + 1] - rows.start
        vectors = Codes(codes.vectors.codes_NH[rows], codes.vectors.scales_N[rows], offsets)
        return DeviceCodes.copy(vectors, codes.errors_P[own], codes.norms_P[own], device)


def _pieces(segments: Sequence[Segment]) -> Iterator[_Piece]:
    starts = offsets_of([len(segment.codes) for segment in segments])
    for segment, start in zip(segments, starts, strict=False):
        for passages in runs(segment.slots.vectors.offsets, _PIECE_BYTES // _vector_bytes(segment)):
            yield _Piece(segment, passages, int(start) + passages.start)


def _vector_bytes(segment: Segment) -> int:
    codes = segment.slots.vectors
    return codes.codes_NH.shape[1] + codes.scales_N.itemsize


def _part(queries: Representations, start: int, stop: int) -> Representations:
    return queries.take(np.arange(start, min(stop, len(queries))))


def room_on(device: torch.device) -> int:
    """Return the bytes that codes may take on a device beside what is there already."""
    if device.type == "cpu":
        return int(_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    free, total = torch.cuda.mem_get_info(device)
    # What this process has freed, torch still holds.
    ours = torch.cuda.memory_allocated(device)
    free += torch.cuda.memory_reserved(device) - ours
    return max(0, min(int(_SHARE * free), int(_SHARE * total) - ours))

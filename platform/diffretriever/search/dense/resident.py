"""Scores the codes of a shard in GPU memory and returns only the candidates.

Codes that do not fit are copied again in each pass. Searches of one process share copied codes, because index versions
and filters mostly have the same fragments. A query vector is rounded to 16 bits and stored as two rows of 8 bits, which
GPUs multiply fastest. The products are exact, so the bounds of `vectors.maxsim` apply.

Legend: Q queries, P passages of a piece, E = P + 1, L limbs, F lower bounds kept of a query, C candidates, M vectors of
all queries together, N vectors of all passages together, H hidden size.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from diffretriever.search.dense.codes import Segment, SlotCodes
from diffretriever.vectors.hits import NO_NUMBER
from diffretriever.vectors.maxsim import LIMB, CodedQueries, Codes, Shortlist, max_per_passage, sum_per_query
from diffretriever.vectors.representations import Representations, offsets_of, runs

_PIECE_BYTES = 1 << 30
_SHARE = 0.75
"""Maximum share of GPU memory in use; encoders need the rest for their batches."""
_CELL_BYTES = 96
"""Memory per query and passage: score, bounds, two numbers of a candidate, and maxima of 16 query vectors."""
_PASSAGE_BYTES = 8
"""Two bounds of a passage."""
_shared: WeakValueDictionary[Hashable, DeviceCodes] = WeakValueDictionary()
"""Copied codes of this process by `_Piece.key`."""


@dataclass(frozen=True)
class DeviceCodes:
    """Codes of passages, copied to a device.

    Attributes:
        codes_NH: int8.
        scales_N: float32, quantisation step of each vector.
        offsets_E: int64 [P + 1]; passage i owns vectors offsets_E[i] to offsets_E[i + 1].
        longest: most vectors of a passage.
        errors_P: float32, the most that rounding to codes took from a vector of the passage, in length.
        norms_P: float32, length of its longest vector.
    """

    codes_NH: Tensor
    scales_N: Tensor
    offsets_E: Tensor
    longest: int
    errors_P: Tensor
    norms_P: Tensor

    @classmethod
    def copy(cls, codes: Codes, errors_P: np.ndarray, norms_P: np.ndarray, device: torch.device) -> Self:
        """Copy the codes of P passages, and their float32 [P] errors and norms, to a device."""
        return cls(
            _copied(codes.codes_NH, device),
            _copied(codes.scales_N, device),
            _copied(codes.offsets, device),
            int(np.diff(codes.offsets).max(initial=0)),
            _copied(errors_P, device),
            _copied(norms_P, device),
        )

    def __len__(self) -> int:
        return len(self.errors_P)


class DeviceQueries:
    """Quantised queries on a device."""

    def __init__(self, vectors_MH: np.ndarray, offsets: np.ndarray, device: torch.device) -> None:
        """Quantise queries (float16 or float32 [M, H], int64 offsets [Q + 1], none empty) and copy them."""
        coded = CodedQueries(vectors_MH, offsets)
        high_MH = np.rint(coded.codes_MH / LIMB).astype(np.int16)
        limbs_MLH = np.stack([high_MH, coded.codes_MH - LIMB * high_MH], axis=1).astype(np.int8)
        self._limbs_MLH = _copied(limbs_MLH, device)
        self._scales_M = _copied(coded.scales_M, device)
        self._counts = torch.from_numpy(np.diff(offsets))
        self._counts_Q = self._counts.to(device)
        self._norms_Q1 = _copied(coded.norms_Q.astype(np.float32), device)[:, None]
        self._errors_Q1 = _copied(coded.errors_Q.astype(np.float32), device)[:, None]

    def __len__(self) -> int:
        return len(self._counts)

    def scores(self, codes: DeviceCodes) -> Tensor:
        """Return approximate mean MaxSim, float32 [Q, P]; -inf for passages without vectors."""
        if codes.codes_NH.is_cuda:
            # Triton comes with torch for GPUs only.
            from diffretriever.search.dense.fused import largest_products
        else:
            largest_products = _largest_products
        best_PM = largest_products(codes, self._limbs_MLH).mul_(self._scales_M)
        return (sum_per_query(best_PM, self._counts) / self._counts_Q).T

    def slack(self, codes: DeviceCodes) -> Tensor:
        """Return the error bound of each score, float32 [Q, P]."""
        return self._norms_Q1 * codes.errors_P + self._errors_Q1 * (codes.norms_P + codes.errors_P)


def _largest_products(codes: DeviceCodes, limbs_MLH: Tensor) -> Tensor:
    """CPU version of `fused.largest_products`."""
    vectors_HM = (LIMB * limbs_MLH[:, 0].float() + limbs_MLH[:, 1]).T
    products_NM = codes.codes_NH.float() @ vectors_HM
    return max_per_passage(products_NM * codes.scales_N[:, None], codes.offsets_E.diff())


def _copied(values: np.ndarray, device: torch.device) -> Tensor:
    # torch rejects read-only arrays such as memory-mapped ones.
    return torch.from_numpy(np.array(values)).to(device)


def resident_codes(segments: Sequence[Segment], device: torch.device, memory_mb: int) -> ResidentCodes | None:
    """Return `ResidentCodes`; None for the CPU, whose kernels read the codes where they are mapped."""
    return None if device.type == "cpu" else ResidentCodes(segments, device, memory_mb)


class ResidentCodes:
    """Retrieves top-k candidates by codes on a device."""

    def __init__(self, segments: Sequence[Segment], device: torch.device, memory_mb: int) -> None:
        """Copy the codes that fit to a device; `memory_mb` MiB are for scores.

        Passages are numbered consecutively across segments, including deleted ones.
        """
        self._device = device
        self._pieces = list(_pieces(segments))
        largest = max((len(piece) for piece in self._pieces), default=0)
        self._queries_at_once = max(1, (memory_mb << 20) // (_CELL_BYTES * max(1, largest)))
        keys = [piece.key(device) for piece in self._pieces]
        needed = [0 if key in _shared else piece.bytes for key, piece in zip(keys, self._pieces, strict=True)]
        room = free_memory(device)
        if sum(needed) > room:
            # For one piece that does not stay.
            room -= max(needed)
        self._live = [
            torch.from_numpy(piece.segment.numbers_P[piece.passages] != NO_NUMBER).to(device) for piece in self._pieces
        ]
        self._resident: dict[int, DeviceCodes] = {}
        for number, (key, size, end) in enumerate(zip(keys, needed, np.cumsum(needed), strict=True)):
            if not size or end <= room:
                self._resident[number] = _shared.get(key) or self._pieces[number].copy(device)
                _shared[key] = self._resident[number]

    @property
    def fits(self) -> bool:
        """Whether all codes stay on the device."""
        return len(self._resident) == len(self._pieces)

    def shortlists(self, queries: Representations, k: int) -> list[Shortlist]:
        """Return the top-k candidates of each query, in one pass over the codes."""
        groups = [_Group(part, k, self._device) for part in queries.split(self._queries_at_once)]
        for number, piece in enumerate(self._pieces):
            codes = self._resident.get(number) or piece.copy(self._device)
            for group in groups:
                group.add(codes, self._live[number], piece.start)
        return [shortlist for group in groups for shortlist in group.shortlists()]


class _Group:
    def __init__(self, queries: Representations, k: int, device: torch.device) -> None:
        self._queries, self._k = DeviceQueries(queries.vectors_MH, queries.offsets, device), k
        self._lower_QF = torch.empty(len(queries), 0, device=device)
        self._candidates = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]

    def _floor(self) -> Tensor:
        if self._lower_QF.shape[1] < self._k:
            return self._lower_QF.new_full((len(self._queries), 1), -torch.inf)
        return self._lower_QF[:, -1:]

    def add(self, codes: DeviceCodes, live_P: Tensor, start: int) -> None:
        # Codes of deleted passages can contain any value.
        scores_QP = self._queries.scores(codes).masked_fill_(~live_P, -torch.inf)
        slack_QP = self._queries.slack(codes).masked_fill_(~live_P, 0)
        lower_QP = scores_QP - slack_QP
        best_QF = lower_QP.topk(min(self._k, len(codes)), dim=1).values
        lower_QF = torch.cat([self._lower_QF, best_QF], dim=1)
        self._lower_QF = lower_QF.topk(min(self._k, lower_QF.shape[1]), dim=1).values
        upper_QP = scores_QP.add_(slack_QP)
        query_C, passage_C = ((upper_QP >= self._floor()) & (upper_QP > -torch.inf)).nonzero(as_tuple=True)
        most_C = upper_QP[query_C, passage_C].cpu().numpy()
        self._candidates.append((query_C.cpu().numpy(), passage_C.cpu().numpy() + start, most_C))

    def shortlists(self) -> list[Shortlist]:
        query_C, numbers_C, most_C = (np.concatenate(parts) for parts in zip(*self._candidates, strict=True))
        kept = np.flatnonzero(most_C >= self._floor().cpu().numpy()[query_C, 0])
        # Pieces are in passage order, so each query's candidates stay ascending.
        order = kept[np.argsort(query_C[kept], kind="stable")]
        borders = np.searchsorted(query_C[order], np.arange(len(self._queries) + 1))
        numbers_C, most_C = numbers_C[order], most_C[order]
        return [Shortlist(numbers_C[a:b], most_C[a:b]) for a, b in pairwise(borders)]


@dataclass(frozen=True)
class _Piece:
    segment: Segment
    passages: slice
    rows: slice
    """Rows of these passages' vectors."""
    start: int
    """Number of the first passage across all segments."""

    def __len__(self) -> int:
        return int(self.passages.stop - self.passages.start)

    @property
    def bytes(self) -> int:
        return int(self.rows.stop - self.rows.start) * _vector_bytes(self.segment) + len(self) * _PASSAGE_BYTES

    def key(self, device: torch.device) -> Hashable:
        # Files built after a deletion lack rows that earlier files of the same fragment have.
        rows = hash(self.segment.codes.rows_P.tobytes())
        return self.segment.folder.location, rows, self.passages.start, self.passages.stop, device

    def copy(self, device: torch.device) -> DeviceCodes:
        codes, passages = _slots(self.segment), self.passages
        offsets = codes.vectors.offsets[passages.start : passages.stop + 1] - self.rows.start
        vectors = Codes(codes.vectors.codes_NH[self.rows], codes.vectors.scales_N[self.rows], offsets)
        return DeviceCodes.copy(vectors, codes.errors_P[passages], codes.norms_P[passages], device)


def _pieces(segments: Sequence[Segment]) -> Iterator[_Piece]:
    starts = offsets_of([len(segment.codes) for segment in segments]).tolist()
    for segment, start in zip(segments, starts, strict=False):
        offsets = _slots(segment).vectors.offsets
        for passages in runs(offsets, _PIECE_BYTES // _vector_bytes(segment)):
            rows = slice(int(offsets[passages.start]), int(offsets[passages.stop]))
            yield _Piece(segment, passages, rows, start + passages.start)


def _slots(segment: Segment) -> SlotCodes:
    assert segment.codes.slots is not None, "an exact scan opens no codes of means alone"
    return segment.codes.slots


def _vector_bytes(segment: Segment) -> int:
    codes = _slots(segment).vectors
    return codes.codes_NH.shape[1] + codes.scales_N.itemsize


def free_memory(device: torch.device) -> int:
    """Return the bytes of GPU memory available for codes."""
    free, total = torch.cuda.mem_get_info(device)
    # torch caches memory that this process has freed.
    ours = torch.cuda.memory_allocated(device)
    free += torch.cuda.memory_reserved(device) - ours
    return max(0, min(int(_SHARE * free), int(_SHARE * total) - ours))

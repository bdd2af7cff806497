"""Candidates by LanceDB's own index over slot vectors, which lies within the table.

Legend: N vectors of all passages, C candidates of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from diffretriever.encoders.representations import Representations
from diffretriever.index.table import PassageIndex
from diffretriever.index.vector_index import Kind, build_vector_index, index_parts, indexed_fragments, nearest
from diffretriever.search.dense.candidates import Proposer
from diffretriever.search.dense.coded import CodedPassages
from diffretriever.search.dense.codes import Segment
from schemas.accelerate import ProposerName

_PROBED = 16
"""One partition in so many is looked into, but never fewer than this number."""


class LanceDbTokensProposer(Proposer):
    """Takes what LanceDB's multivector search finds, in its order; its distances are estimates and are not used."""

    name: ClassVar[ProposerName] = "lancedb_tokens"
    kind: ClassVar[Kind] = "IVF_RQ"

    def __init__(self, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """`segments` are those that the index of this version covers."""
        super().__init__(segments)
        self._index = index
        self._parts = index_parts(index, self.kind)
        self._n_probes = max(_PROBED, _partitions(segments) // _PROBED)

    @classmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Index all slot vectors if some segment's are missing."""
        if len(_known(index, cls.kind, segments)) < len(segments):
            CodedPassages(segments).refuse_not_finite(index.uri)
            build_vector_index(index, cls.kind, _partitions(segments))

    @classmethod
    def open(cls, index: PassageIndex, segments: Sequence[Segment]) -> Self:
        """Open it over the segments whose fragments are indexed."""
        return cls(index, _known(index, cls.kind, segments))

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return each query's n passages nearest by LanceDB's estimate."""
        vectors_MH = queries.vectors_MH.astype(np.float32)
        own = [slice(*queries.offsets[query : query + 2]) for query in range(len(queries))]
        return [self._numbers(nearest(self._index, self._parts, vectors_MH[rows], n, self._n_probes)) for rows in own]

    def _numbers(self, addresses_C: np.ndarray) -> np.ndarray:
        fragments_C, rows_C = addresses_C >> np.uint64(32), addresses_C & np.uint64(0xFFFFFFFF)
        numbers_C = np.empty(len(addresses_C), np.int64)
        for segment, start in zip(self.passages.segments, self.passages.starts[:-1], strict=True):
            here = np.flatnonzero(fragments_C == segment.fragment.fragment_id)
            numbers_C[here] = start + np.searchsorted(segment.codes.rows_P, rows_C[here])
        return numbers_C


def _known(index: PassageIndex, kind: Kind, segments: Sequence[Segment]) -> list[Segment]:
    indexed = indexed_fragments(index, kind)
    return [segment for segment in segments if segment.fragment.fragment_id in indexed]


def _partitions(segments: Sequence[Segment]) -> int:
    return max(1, int(np.sqrt(sum(len(segment.codes.stored_NH) for segment in segments))))

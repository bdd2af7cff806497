"""Candidates by faiss: the nearest slot vectors of each query vector, and the passages that they belong to.

A segment's index lies beside its codes and, like them, never changes.

Legend: P passages of a segment, N their vectors, M query vectors of one query, T slot vectors found for each,
C candidates, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from diffretriever.encoders.representations import Representations
from diffretriever.files import whole_file
from diffretriever.index.table import PassageIndex
from diffretriever.scoring.coded import Codes
from diffretriever.scoring.kernels import to_float32
from diffretriever.search.dense.candidates import Proposer
from diffretriever.search.dense.coded import CodedPassages
from diffretriever.search.dense.codes import Segment
from schemas.accelerate import ProposerName

_TRAINING_VECTORS = 64
"""For each list; faiss wants 39 or more."""
_VECTORS_AT_ONCE = 16_384
_FOUND_PER_PASSAGE = 2
"""Slot vectors to find, for each query vector, in place of one passage."""
_MOST_FOUND = 8192
_SCANNED_PER_FOUND = 16
"""Slot vectors to look at for one that is found."""
_FEWEST_LISTS = 8


class FaissTokensProposer(Proposer):
    """Ranks passages by their best slot vector for each query vector, of those found; the rest count as the last."""

    name: ClassVar[ProposerName] = "faiss_tokens"

    def __init__(self, segments: Sequence[Segment]) -> None:
        """`segments` are those that have an index."""
        super().__init__(segments)
        # Mapped, so that processes share it and only what is looked into is read.
        self._indexes = [_faiss().read_index(str(_file(s)), _faiss().IO_FLAG_MMAP) for s in segments]

    @classmethod
    def build(cls, index: PassageIndex, segments: Sequence[Segment]) -> None:
        """Index the segments that are not indexed yet."""
        CodedPassages(segments).refuse_not_finite(index.uri)
        for segment in segments:
            if not _file(segment).is_file():
                with whole_file(_file(segment)) as stream:
                    _faiss().write_index(_trained_and_filled(segment), _faiss().PyCallbackIOWriter(stream.write))

    @classmethod
    def open(cls, index: PassageIndex, segments: Sequence[Segment]) -> Self:
        """Open it over the segments that are indexed."""
        return cls([segment for segment in segments if _file(segment).is_file()])

    def propose(self, queries: Representations, n: int) -> list[np.ndarray]:
        """Return each query's n passages that are best by the slot vectors found."""
        vectors_MH = queries.vectors_MH.astype(np.float32)
        found = [_search(i, vectors_MH, n * _FOUND_PER_PASSAGE) for i in self._indexes]
        return [self._ranked(found, slice(*queries.offsets[query : query + 2]), n) for query in range(len(queries))]

    def _ranked(self, found: list[tuple[np.ndarray, np.ndarray]], own: slice, n: int) -> np.ndarray:
        passages = self.passages
        parts = [
            _union(products_MT[own], vectors_MT[own], segment.codes.vectors)
            for (products_MT, vectors_MT), segment in zip(found, passages.segments, strict=True)
        ]
        numbers_C = np.concatenate([start + rows for (rows, _), start in zip(parts, passages.starts, strict=False)])
        scores_C = np.concatenate([scores for _, scores in parts])
        return numbers_C[np.argsort(-scores_C, kind="stable")[:n]]


def _union(products_MT: np.ndarray, vectors_MT: np.ndarray, codes: Codes) -> tuple[np.ndarray, np.ndarray]:
    """Return the passages (int64 [C]) that own the vectors found, and estimates of their scores (float32 [C])."""
    found = vectors_MT >= 0
    owners_MT = np.searchsorted(codes.offsets, vectors_MT, side="right") - 1
    passages_C = np.unique(owners_MT[found])
    scores_C = np.zeros(len(passages_C), np.float32)
    for products_T, owners_T, found_T in zip(products_MT, owners_MT, found, strict=True):
        # Descending, so that a passage's first is its best.
        owners, first = np.unique(owners_T[found_T], return_index=True)
        last = products_T[found_T][-1] if found_T.any() else 0
        best_C = np.full(len(passages_C), last, np.float32)
        best_C[np.searchsorted(passages_C, owners)] = products_T[first]
        scores_C += best_C
    return passages_C, scores_C


def _search(index: Any, vectors_MH: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Return products float32 [M, T], descending, and vector numbers int64 [M, T]; -1 where fewer were found."""
    n_found = min(wanted, index.ntotal, _MOST_FOUND)
    share = n_found * _SCANNED_PER_FOUND / max(1, index.ntotal)
    lists = min(index.nlist, max(_FEWEST_LISTS, int(np.ceil(share * index.nlist))))
    products_MT, vectors_MT = index.search(vectors_MH, n_found, params=_faiss().SearchParametersIVF(nprobe=lists))
    return products_MT, vectors_MT


def _trained_and_filled(segment: Segment) -> Any:
    stored_NH = segment.codes.stored_NH
    lists = max(1, min(int(np.sqrt(len(stored_NH))), len(stored_NH) // _TRAINING_VECTORS))
    index = _faiss().index_factory(stored_NH.shape[1], f"IVF{lists},SQ8", _faiss().METRIC_INNER_PRODUCT)
    rng = np.random.default_rng(0)
    sample = rng.choice(len(stored_NH), min(len(stored_NH), lists * _TRAINING_VECTORS), replace=False)
    index.train(to_float32(stored_NH[np.sort(sample)]))
    for start in range(0, len(stored_NH), _VECTORS_AT_ONCE):
        index.add(to_float32(stored_NH[start : start + _VECTORS_AT_ONCE]))
    return index


def _file(segment: Segment) -> Path:
    return segment.folder / "faiss_tokens.bin"


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise ValueError(
            "candidates by faiss_tokens need faiss: `pip install 'diffretriever[faiss]'`, or take --candidates mean"
        ) from error
    return faiss

"""What stored passages must be like, checked a batch at a time.

Legend: P passages of the batch, N their vectors, T their impacts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diffretriever.collections import Passage
from diffretriever.encoders.representations import read_vectors
from diffretriever.index.fragment_codes import FragmentCodes
from diffretriever.index.vectors import read_codes
from schemas.manifest import IndexManifest
from schemas.retriever import Bm25Retriever, LibraryRetriever

if TYPE_CHECKING:
    from diffretriever.codecs.base import Codec

# Rounding to fp16 changes each number by up to 2^-11 of itself, and so a vector's length by no more than that; twice
# that leaves room for the encoder's own last bits.
_UNIT_TOLERANCE = 2.0**-10
# Lengths of vectors are kept in fp32.
_NORM_TOLERANCE = 1e-5

Found = Iterator[tuple[str, np.ndarray]]
"""Kinds of problems, each with a bool [P]: the passages that have it."""


def text_problems(batch: pa.RecordBatch) -> Found:
    """Compare digests with titles and texts."""
    rows = zip(*(batch.column(name).to_pylist() for name in ("id", "title", "text", "digest")), strict=True)
    yield (
        "the digest is not that of title and text",
        np.array([Passage(i, title, text).digest != d for i, title, text, d in rows], bool),
    )


def vector_problems(batch: pa.RecordBatch, manifest: IndexManifest) -> Found:
    """Check how many vectors there are, and that they are finite and, where the retriever makes them so, unit."""
    retriever = manifest.retriever
    assert not isinstance(retriever, Bm25Retriever), "BM25 indexes hold no vectors"
    stored_NH, offsets = read_vectors(batch)
    counts_P, most = np.diff(offsets), retriever.max_vectors("passage")
    vectors_NH = stored_NH.astype(np.float32)
    norms_N = np.sqrt(np.einsum("nh,nh->n", vectors_NH, vectors_NH))
    finite_N = np.isfinite(norms_N)
    yield f"there are not 1 to {most} vectors", (counts_P < 1) | (counts_P > most)
    yield "vectors and slot words differ in number", counts_P != _lengths(batch, "slot_tokens")
    yield "a vector is not finite", _any(~finite_N, offsets)
    if not (isinstance(retriever, LibraryRetriever) and retriever.similarity == "dot"):
        yield "a vector is not of length 1", _any(finite_N & (np.abs(norms_N - 1) > _UNIT_TOLERANCE), offsets)


def impact_problems(batch: pa.RecordBatch, vocab_size: int) -> Found:
    """Check that impacts are sorted by entry of the vocabulary, and positive."""
    ids_T = batch.column("impact_ids").flatten().to_numpy()
    weights_T = batch.column("impact_weights").flatten().to_numpy()
    id_offsets, weight_offsets = _offsets(batch, "impact_ids"), _offsets(batch, "impact_weights")
    starts_T = np.zeros(len(ids_T) + 1, bool)
    starts_T[id_offsets] = True
    falls_T = np.diff(ids_T, prepend=-1) <= 0
    yield "impact ids and weights differ in number", np.diff(id_offsets) != np.diff(weight_offsets)
    yield "impact ids do not ascend", _any(falls_T & ~starts_T[:-1], id_offsets)
    yield (
        f"an impact id is not in the vocabulary of {vocab_size}",
        _any((ids_T < 0) | (ids_T >= vocab_size), id_offsets),
    )
    yield (
        "an impact's weight is not positive and finite",
        _any(~(np.isfinite(weights_T) & (weights_T > 0)), weight_offsets),
    )


def compressed_problems(batch: pa.RecordBatch, codec: Codec) -> tuple[str, np.ndarray]:
    """Check that there is a row of codes for each slot word, and that all of them can be decoded."""
    codes_NW, offsets = read_codes(batch)
    wrong_P = _any(~codec.readable(codes_NW), offsets) | (np.diff(offsets) != _lengths(batch, "slot_tokens"))
    return "codes are missing or cannot be decoded", wrong_P


def code_problems(batch: pa.RecordBatch, codes: FragmentCodes) -> Found:
    """Compare stored vectors with their codes, whose error and length bounds every search relies on."""
    stored_NH, offsets = read_vectors(batch)
    rows_P = batch.column("_rowaddr").to_numpy() & 0xFFFFFFFF
    places_P = np.minimum(np.searchsorted(codes.rows_P, rows_P), max(0, len(codes.rows_P) - 1))
    coded_P = codes.rows_P[places_P] == rows_P if len(codes.rows_P) else np.zeros(len(rows_P), bool)
    counts_P = np.diff(codes.vectors.offsets)[places_P] if coded_P.any() else np.zeros(len(rows_P), np.int64)
    comparable_P = coded_P & (counts_P == np.diff(offsets))
    yield "the fragment's codes leave the passage out", ~coded_P
    yield "codes and vectors differ in number", coded_P & ~comparable_P

    errors_P, norms_P = np.zeros(len(rows_P)), np.zeros(len(rows_P))
    for row in np.flatnonzero(comparable_P):
        place = places_P[row]
        vectors = stored_NH[slice(*offsets[row : row + 2])].astype(np.float64)
        decoded = _decode(codes, slice(*codes.vectors.offsets[place : place + 2]))
        errors_P[row] = np.linalg.norm(vectors - decoded, axis=1).max(initial=0)
        norms_P[row] = np.linalg.norm(vectors, axis=1).max(initial=0)
    yield "codes are further off than they say", comparable_P & ~(errors_P <= codes.errors_P[places_P])
    yield (
        "a vector is longer than its codes say",
        comparable_P & ~(norms_P <= codes.norms_P[places_P] * (1 + _NORM_TOLERANCE)),
    )


def _decode(codes: FragmentCodes, rows: slice) -> np.ndarray:
    # The codes of a vector that is not finite have an endless scale, which is a problem reported elsewhere.
    with np.errstate(invalid="ignore"):
        return codes.vectors.codes_NH[rows] * codes.vectors.scales_N[rows, None].astype(np.float64)


def _lengths(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return pc.list_value_length(batch.column(name)).to_numpy().astype(np.int64)


def _offsets(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(_lengths(batch, name))])


def _any(wrong_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return bool [P]: whether any of a passage's own is wrong."""
    before = np.concatenate([[0], np.cumsum(wrong_N)])
    return before[offsets[1:]] > before[offsets[:-1]]

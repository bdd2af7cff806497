"""Codebooks of the product codec: k-means, lookup tables and their compiled loops.

Each byte is the index of a codeword. Tables contain the products of all codewords with all query vectors, so scoring
costs one addition per byte and query vector.

Legend: S vectors of the sample, M vectors, N rows of bytes, D dimensions = G bytes x W dimensions of a byte, V = 256
values of a byte, L query vectors, P passages.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from diffretriever.core.kernels import kernel

_VALUES = 256
_ROWS_AT_ONCE = 8
_ZERO = np.int32(0)
_MOST_NEGATIVE = np.float32(-np.inf)
_CODEWORD_ROUNDS = 12
_TABLE_CELLS = 1 << 20
"""Table entries per pass (4 MiB); larger tables miss the cache."""


def byte_codewords(sample_SD: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Train codewords for each byte by Lloyd's algorithm on a sample (float32 [S, D]); return float32 [G, 256, W].

    Codewords without vectors are redrawn from the sample.
    """
    generator = np.random.default_rng(seed)
    parts_SGW = sample_SD.reshape(len(sample_SD), -1, width)
    codewords_GVW = _drawn(parts_SGW, _VALUES, generator)
    for _ in range(_CODEWORD_ROUNDS):
        sums_GVW = np.zeros(codewords_GVW.shape)
        counts_GV = np.zeros(codewords_GVW.shape[:2], np.int64)
        add_to_codewords(sample_SD, nearest_bytes(sample_SD, codewords_GVW), sums_GVW, counts_GV)
        means_GVW = (sums_GVW / np.maximum(counts_GV, 1)[:, :, None]).astype(np.float32)
        spare_GVW = _drawn(parts_SGW, _VALUES, generator)
        codewords_GVW = np.where(counts_GV[:, :, None] > 0, means_GVW, spare_GVW)
    return codewords_GVW


def nearest_bytes(vectors_MD: np.ndarray, codewords_GVW: np.ndarray) -> np.ndarray:
    """Return the index of the nearest codeword of each byte (Euclidean distance), uint8 [M, G]."""
    codes_MG = np.empty((len(vectors_MD), len(codewords_GVW)), np.uint8)
    halves_GV = (codewords_GVW**2).sum(axis=2) / 2
    columns_GWV = np.ascontiguousarray(codewords_GVW.transpose(0, 2, 1))
    nearest_codewords(vectors_MD, columns_GWV, halves_GV, codes_MG)
    return codes_MG


def _drawn(parts_SGW: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    drawn = generator.choice(len(parts_SGW), count, replace=len(parts_SGW) < count)
    return np.ascontiguousarray(parts_SGW[drawn].transpose(1, 0, 2))


def look_up(codes_NG: np.ndarray, codewords_GVW: np.ndarray) -> np.ndarray:
    """Concatenate the codewords (float32 [G, 256, W]) of each row (uint8 [N, G]) to float32 [N, D]."""
    flat = torch.from_numpy(codewords_GVW.reshape(-1, codewords_GVW.shape[2]))
    vectors: np.ndarray = functional.embedding(_entries(codes_NG), flat).reshape(len(codes_NG), -1).numpy()
    return vectors


def product_tables(query_LD: np.ndarray, codewords_GVW: np.ndarray) -> np.ndarray:
    """Return the products of all codewords with all query vectors, float32 [G, 256, L]."""
    query_GWL = query_LD.reshape(len(query_LD), len(codewords_GVW), -1).transpose(1, 2, 0)
    return np.matmul(codewords_GVW, query_GWL)


def table_sums(codes_NG: np.ndarray, tables_GVL: np.ndarray) -> np.ndarray:
    """Sum the table rows of each row's bytes; return float32 [N, L]."""
    width = tables_GVL.shape[2]
    per_pass = max(1, _TABLE_CELLS // (_VALUES * width))
    sums_NL = torch.zeros(len(codes_NG), width)
    for start in range(0, codes_NG.shape[1], per_pass):
        part = slice(start, start + per_pass)
        table = torch.from_numpy(tables_GVL[part].reshape(-1, width))
        sums_NL += functional.embedding_bag(_entries(codes_NG[:, part]), table, mode="sum")
    sums: np.ndarray = sums_NL.numpy()
    return sums


def _entries(codes_NG: np.ndarray) -> torch.Tensor:
    firsts_G = np.arange(codes_NG.shape[1], dtype=np.int32) * _VALUES
    return torch.from_numpy(np.add(codes_NG, firsts_G, dtype=np.int32))


@kernel()
def rotate(vectors_MD: np.ndarray, rotation_DD: np.ndarray, out_MD: np.ndarray) -> None:
    """Write [M, D] = [M, D] @ [D, D] in float32, summing in order, so a row does not depend on other rows."""
    for first in range(0, vectors_MD.shape[0], _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, vectors_MD.shape[0])
        out_MD[first:last] = np.float32(0)
        # Reads each matrix row once for several vectors: a large matrix exceeds the cache.
        for d in range(rotation_DD.shape[0]):
            for m in range(first, last):
                value = vectors_MD[m, d]
                for j in range(rotation_DD.shape[1]):
                    out_MD[m, j] += value * rotation_DD[d, j]


@kernel(fastmath={"nnan", "nsz", "contract"})
def nearest_codewords(
    points_MD: np.ndarray, codewords_GWV: np.ndarray, halves_GV: np.ndarray, codes_MG: np.ndarray
) -> None:
    """Write the index of the nearest codeword of each vector and byte; ties go to the last.

    `halves_GV` are half the squared norms of the codewords.
    """
    width = codewords_GWV.shape[1]
    nearness_V = np.empty(_VALUES, np.float32)
    for m in range(points_MD.shape[0]):
        for g in range(codewords_GWV.shape[0]):
            for v in range(_VALUES):
                nearness_V[v] = -halves_GV[g, v]
            for w in range(width):
                point = points_MD[m, g * width + w]
                for v in range(_VALUES):
                    nearness_V[v] += point * codewords_GWV[g, w, v]
            best = nearness_V[0]
            for v in range(_VALUES):
                best = max(best, nearness_V[v])
            nearest = _ZERO
            for v in range(_VALUES):
                nearest = max(nearest, np.int32(v) if nearness_V[v] == best else _ZERO)
            codes_MG[m, g] = np.uint8(nearest)


@kernel()
def add_to_codewords(points_MD: np.ndarray, codes_MG: np.ndarray, sums_GVW: np.ndarray, counts_GV: np.ndarray) -> None:
    """Add each vector to the sum (float64) and count (int64) of its assigned codewords."""
    width = sums_GVW.shape[2]
    for m in range(points_MD.shape[0]):
        for g in range(codes_MG.shape[1]):
            value = codes_MG[m, g]
            counts_GV[g, value] += 1
            for w in range(width):
                sums_GVW[g, value, w] += points_MD[m, g * width + w]


@kernel()
def best_of_passages(products_NL: np.ndarray, scales_N: np.ndarray, offsets: np.ndarray, best_PL: np.ndarray) -> None:
    """Write each query vector's largest scaled product with a passage's vectors; -inf for empty passages."""
    for p in range(best_PL.shape[0]):
        for q in range(best_PL.shape[1]):
            best_PL[p, q] = _MOST_NEGATIVE
        for n in range(offsets[p], offsets[p + 1]):
            scale = scales_N[n]
            for q in range(best_PL.shape[1]):
                best_PL[p, q] = max(best_PL[p, q], products_NL[n, q] * scale)

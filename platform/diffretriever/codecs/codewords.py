"""Codewords: k-means for the centroids of unit vectors and for the bytes of vectors, and what rows of bytes stand for.

Each byte of a row names a codeword, or an entry of a table of products. A table holds the product of every codeword
with every query vector, so that scoring a stored vector is one addition a byte and query vector, whatever number of
dimensions a byte stands for.

Legend: S vectors of the sample, M vectors, N rows of bytes, H hidden size, C centroids, D dimensions = G bytes x W
dimensions of a byte, V = 256 values of a byte, L query vectors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional
from torch.nn.functional import normalize

from diffretriever.codecs.kernels import add_to_codewords, nearest_codewords

BYTE_VALUES = 256
_SPHERICAL_ROUNDS = 6
_CODEWORD_ROUNDS = 12
_BLOCK_CELLS = 1 << 24
"""Products of vectors and centroids held at once: 64 MiB of fp32."""
_TABLE_CELLS = 1 << 20
"""Table entries used in one pass, 4 MiB: larger tables are summed in parts, since additions wait for memory."""


def spherical_centroids(sample_SH: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return float32 [C, H] of unit length: centroids by inner product, a few rounds from random vectors.

    A centroid that no vector is nearest to moves to the vector that is farthest from its own.

    Args:
        sample_SH: float32 [S, H].
        count: C, at most S.
        seed: of the vectors to begin with.
    """
    sample = torch.from_numpy(sample_SH)
    first = np.random.default_rng(seed).choice(len(sample_SH), count, replace=False)
    centroids_CH = normalize(sample[torch.from_numpy(first)], dim=1)
    for _ in range(_SPHERICAL_ROUNDS):
        products_S, nearest_S = _nearest(sample, centroids_CH)
        sums_CH = torch.zeros_like(centroids_CH).index_add_(0, nearest_S, sample)
        empty = torch.bincount(nearest_S, minlength=count) == 0
        farthest = products_S.argsort(stable=True)[: int(empty.sum())]
        sums_CH[empty] = sample[farthest]
        centroids_CH = normalize(sums_CH, dim=1)
    found: np.ndarray = centroids_CH.numpy()
    return found


def nearest_centroids(vectors_MH: np.ndarray, centroids_CH: np.ndarray) -> np.ndarray:
    """Return int64 [M]: the centroid with the largest inner product, for each vector (both float32)."""
    numbers: np.ndarray = _nearest(torch.from_numpy(vectors_MH), torch.from_numpy(centroids_CH))[1].numpy()
    return numbers


def byte_codewords(sample_SD: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Return float32 [G, 256, W]: for each byte, codewords for its W dimensions, by Lloyd's rounds from random vectors.

    A codeword that no vector is nearest to moves to where a random vector is.

    Args:
        sample_SD: float32 [S, D], D a multiple of W.
        width: W.
        seed: of the vectors to begin with.
    """
    generator = np.random.default_rng(seed)
    parts_SGW = sample_SD.reshape(len(sample_SD), -1, width)
    codewords_GVW = _drawn(parts_SGW, BYTE_VALUES, generator)
    for _ in range(_CODEWORD_ROUNDS):
        sums_GVW = np.zeros(codewords_GVW.shape)
        counts_GV = np.zeros(codewords_GVW.shape[:2], np.int64)
        add_to_codewords(sample_SD, nearest_bytes(sample_SD, codewords_GVW), sums_GVW, counts_GV)
        means_GVW = (sums_GVW / np.maximum(counts_GV, 1)[:, :, None]).astype(np.float32)
        spare_GVW = _drawn(parts_SGW, BYTE_VALUES, generator)
        codewords_GVW = np.where(counts_GV[:, :, None] > 0, means_GVW, spare_GVW)
    return codewords_GVW


def nearest_bytes(vectors_MD: np.ndarray, codewords_GVW: np.ndarray) -> np.ndarray:
    """Return uint8 [M, G]: the nearest codeword of each byte (both float32, by Euclidean distance)."""
    codes_MG = np.empty((len(vectors_MD), len(codewords_GVW)), np.uint8)
    halves_GV = (codewords_GVW**2).sum(axis=2) / 2
    columns_GWV = np.ascontiguousarray(codewords_GVW.transpose(0, 2, 1))
    nearest_codewords(vectors_MD, columns_GWV, halves_GV, codes_MG)
    return codes_MG


def _nearest(vectors_MH: torch.Tensor, centroids_CH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = max(1, _BLOCK_CELLS // len(centroids_CH))
    best = [(block @ centroids_CH.T).max(dim=1) for block in vectors_MH.split(rows)]
    return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])


def _drawn(parts_SGW: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return [G, count, W]: the parts of vectors drawn at random, all different ones where there are enough."""
    drawn = generator.choice(len(parts_SGW), count, replace=len(parts_SGW) < count)
    return np.ascontiguousarray(parts_SGW[drawn].transpose(1, 0, 2))


def look_up(codes_NG: np.ndarray, codewords_GVW: np.ndarray) -> np.ndarray:
    """Return float32 [N, D]: the codewords of each row, one after the other.

    Args:
        codes_NG: uint8 [N, G].
        codewords_GVW: float32 [G, 256, W], or [1, 256, W] where all bytes share their codewords.
    """
    shared = len(codewords_GVW) == 1
    entries_NG = torch.from_numpy(codes_NG.astype(np.int32)) if shared else _entries(codes_NG)
    flat = torch.from_numpy(codewords_GVW.reshape(-1, codewords_GVW.shape[2]))
    vectors: np.ndarray = functional.embedding(entries_NG, flat).reshape(len(codes_NG), -1).numpy()
    return vectors


def product_tables(query_LD: np.ndarray, codewords_GVW: np.ndarray, n_bytes: int) -> np.ndarray:
    """Return float32 [G, 256, L]: the product of every codeword of every byte with every query vector.

    Args:
        query_LD: float32 [L, D].
        codewords_GVW: as in `look_up`.
        n_bytes: G.
    """
    query_GWL = query_LD.reshape(len(query_LD), n_bytes, -1).transpose(1, 2, 0)
    return np.matmul(codewords_GVW, query_GWL)


def table_sums(codes_NG: np.ndarray, tables_GVL: np.ndarray) -> np.ndarray:
    """Return float32 [N, L]: the sum over bytes of the table rows that they name."""
    width = tables_GVL.shape[2]
    per_pass = max(1, _TABLE_CELLS // (BYTE_VALUES * width))
    sums_NL = torch.zeros(len(codes_NG), width)
    for start in range(0, codes_NG.shape[1], per_pass):
        part = slice(start, start + per_pass)
        table = torch.from_numpy(tables_GVL[part].reshape(-1, width))
        sums_NL += functional.embedding_bag(_entries(codes_NG[:, part]), table, mode="sum")
    sums: np.ndarray = sums_NL.numpy()
    return sums


def _entries(codes_NG: np.ndarray) -> torch.Tensor:
    """Number the codewords of all bytes through, 256 a byte."""
    firsts_G = np.arange(codes_NG.shape[1], dtype=np.int32) * BYTE_VALUES
    return torch.from_numpy(np.add(codes_NG, firsts_G, dtype=np.int32))

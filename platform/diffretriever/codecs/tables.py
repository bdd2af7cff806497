"""Rows of bytes as sums and as vectors: each byte names a codeword, or an entry of a table of products.

A table holds the product of every codeword with every query vector, so that scoring a stored vector is one addition a
byte and query vector, whatever number of dimensions a byte stands for.

Legend: N rows of codes, G bytes of a row, V = 256 values of a byte, W dimensions of a byte, D = G W, L query vectors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

BYTE_VALUES = 256
_TABLE_CELLS = 1 << 20
"""Table entries used in one pass, 4 MiB: larger tables are summed in parts, since additions wait for memory."""


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

"""Bytes of an index, from how many passages and vectors it has and how long texts are.

What is exact is computed. What Lance makes of texts, ids and small numbers was measured on the built-in collection
(4,729 passages, Lance file format 2.2) and stands here as constants.

Legend: H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30

ZSTD_SHARE = 0.79
"""What zstd at level 3 leaves of unit vectors in bf16, which is how the paper's index sizes come about (reference
§2.5: 0.777 to 0.790, whatever the number of vectors)."""

_FP16 = 2
_CENTROID_ID = 4
_BITS = (4, 2, 1)
_SCALE = 4
# Number of vectors, error bound, length bound, row and id's length of a passage, 4 bytes each, and the scale of its
# mean's code.
_CODES_PER_PASSAGE = 24
_ID = 19
# Table positions and offsets take 8 bytes a passage, the two bounds and a query's score 4.
_SCAN_PER_PASSAGE = 28

TEXT_SHARE = 0.63
"""What Lance's compression leaves of titles and texts."""
# Id, digest 16, number of tokens 1, and offsets.
_ROW = 40
_SLOT_WORD = 2
# The weight's 4 and the id's 2, which Lance packs into as many bits as the largest id of a page has.
_IMPACT = 6

POSTING = 7
"""Row 2, code 1, weight 4; a query reads the first two of each posting of its terms."""


@dataclass(frozen=True)
class Shape:
    """What sizes depend on; all but `hidden_size` may be averages."""

    passages: int
    hidden_size: int
    vectors: float
    """Of a passage."""
    impacts: float
    """Of a passage."""
    text_bytes: float
    """Of a passage, title included."""


def vector_layouts(shape: Shape) -> dict[str, int]:
    """Return the bytes of all vectors by layout.

    A residual codec stores, of each vector, the number of the nearest centroid in 4 bytes and some bits a dimension; a
    product codec only the bits. 8-bit codes are what the exact scan reads; the vectors lie beside them once more.
    """
    vectors = shape.passages * shape.vectors
    raw = vectors * shape.hidden_size * _FP16
    layouts = {"fp16 or bf16": raw, "bf16, zstd": raw * ZSTD_SHARE, "8-bit codes": float(scanned_bytes(shape))}
    for bits in _BITS:
        layouts[f"{bits}-bit residuals"] = vectors * (_CENTROID_ID + _whole_bytes(shape.hidden_size * bits))
        layouts[f"{bits}-bit products"] = vectors * _whole_bytes(shape.hidden_size * bits)
    return {name: round(size) for name, size in layouts.items()}


def table_bytes(shape: Shape) -> int:
    """Return the bytes of the Lance table's data files, once compacted."""
    vectors = shape.vectors * (shape.hidden_size * _FP16 + _SLOT_WORD)
    row = _ROW + shape.text_bytes * TEXT_SHARE + vectors + shape.impacts * _IMPACT
    return round(shape.passages * row)


def codes_bytes(shape: Shape) -> int:
    """Return the bytes beside the table that dense searches read: 8-bit codes, vectors, codes of mean vectors, ids."""
    vectors = shape.vectors * (shape.hidden_size * (1 + _FP16) + _SCALE)
    return round(shape.passages * (vectors + shape.hidden_size + _CODES_PER_PASSAGE + _ID))


def postings_bytes(shape: Shape) -> int:
    """Return the bytes of all impacts as postings."""
    return round(shape.passages * shape.impacts * POSTING)


def scanned_bytes(shape: Shape) -> int:
    """Return the bytes of codes that the exact scan reads for a query."""
    return round(shape.passages * shape.vectors * (shape.hidden_size + _SCALE))


def search_memory(shape: Shape) -> int:
    """Return the bytes that the exact scan of the codes wants to stay in memory."""
    return scanned_bytes(shape) + shape.passages * _SCAN_PER_PASSAGE


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8)

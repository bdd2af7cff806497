"""Encoder output as ragged arrays of vectors and impacts, and its lossless conversion to Arrow.

The values of all texts are concatenated; offsets delimit each text. `not_finite` and `refuse_queries` detect NaN and
infinity, which would corrupt rankings.

Legend: N texts, M vectors of all texts together, H hidden size, T impacts of all texts together; of any ragged array T
texts, C chosen texts, N values of all texts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from diffretriever.schemas.base import counted, shortened
from diffretriever.schemas.index import representation_fields


def offsets_of(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return int64 [T + 1] from the counts [T]; text i owns the values offsets[i] to offsets[i + 1]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def rows_of(offsets: np.ndarray, chosen_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the chosen texts' values and their new offsets, int64 [C + 1]."""
    counts_C = np.diff(offsets)[chosen_C]
    row_offsets = offsets_of(counts_C)
    return np.repeat(offsets[:-1][chosen_C] - row_offsets[:-1], counts_C) + np.arange(row_offsets[-1]), row_offsets


def any_per_text(flags_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return whether any flag (bool [N]) of each text is set, bool [T]."""
    before = offsets_of(flags_N)
    any_T: np.ndarray = before[offsets[1:]] > before[offsets[:-1]]
    return any_T


def runs(offsets: np.ndarray, most: int) -> Iterator[slice]:
    """Yield slices of consecutive texts with up to `most` values in total, or of one larger text."""
    first, count = 0, len(offsets) - 1
    while first < count:
        fitting = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        yield slice(first, max(first + 1, fitting))
        first = max(first + 1, fitting)


@dataclass(frozen=True, slots=True)
class Representations:
    """The representations of N texts.

    Attributes:
        vectors_MH: float16 [M, H]; text i owns rows offsets[i] to offsets[i + 1]. L2-normalised, except with the
            library method and `similarity: dot`.
        offsets: int64 [N + 1].
        slot_tokens: int32 [M], id of each slot's top content token; -1 without one.
        impact_ids: int32 [T], vocabulary entries, ascending within a text.
        impact_weights: float32 [T], positive.
        impact_offsets: int64 [N + 1].
        n_tokens: int32 [N], tokens of each text after truncation; see `PreparedText`.
    """

    vectors_MH: np.ndarray
    offsets: np.ndarray
    slot_tokens: np.ndarray
    impact_ids: np.ndarray
    impact_weights: np.ndarray
    impact_offsets: np.ndarray
    n_tokens: np.ndarray

    def __repr__(self) -> str:
        counts = f"{counted(len(self), 'texts')}, {counted(len(self.vectors_MH), 'vectors')} of {self.hidden_size}"
        return f"Representations({counts}, {counted(len(self.impact_ids), 'impacts')})"

    def __len__(self) -> int:
        return len(self.n_tokens)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.vectors_MH.shape[1])

    def take(self, order: np.ndarray) -> Representations:
        """Return the texts at the positions `order`, in that order."""
        rows, offsets = rows_of(self.offsets, order)
        impacts, impact_offsets = rows_of(self.impact_offsets, order)
        return Representations(
            self.vectors_MH[rows],
            offsets,
            self.slot_tokens[rows],
            self.impact_ids[impacts],
            self.impact_weights[impacts],
            impact_offsets,
            self.n_tokens[order],
        )

    def split(self, size: int) -> list[Representations]:
        """Return the representations in parts of at most `size` texts."""
        if len(self) <= size:
            return [self]
        starts = range(0, len(self), size)
        return [self.take(np.arange(start, min(start + size, len(self)))) for start in starts]

    @classmethod
    def of_vectors(cls, vectors_MH: np.ndarray, counts: Sequence[int] | np.ndarray, n_tokens: Sequence[int]) -> Self:
        """Return the representations of N texts without slots and impacts; `counts` is the vectors per text."""
        return cls(
            vectors_MH=vectors_MH,
            offsets=offsets_of(counts),
            slot_tokens=np.full(len(vectors_MH), -1, np.int32),
            impact_ids=np.zeros(0, np.int32),
            impact_weights=np.zeros(0, np.float32),
            impact_offsets=np.zeros(len(n_tokens) + 1, np.int64),
            n_tokens=np.array(n_tokens, np.int32),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Representations]) -> Representations:
        """Join `parts` (at least one) in order."""
        return cls(
            np.concatenate([p.vectors_MH for p in parts]),
            offsets_of(np.concatenate([np.diff(p.offsets) for p in parts])),
            np.concatenate([p.slot_tokens for p in parts]),
            np.concatenate([p.impact_ids for p in parts]),
            np.concatenate([p.impact_weights for p in parts]),
            offsets_of(np.concatenate([np.diff(p.impact_offsets) for p in parts])),
            np.concatenate([p.n_tokens for p in parts]),
        )

    def to_arrow(self) -> pa.Table:
        """Convert losslessly to the columns of `schemas.index.representation_fields`, one row per text."""
        fields = representation_fields(self.hidden_size)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors_MH.reshape(-1)), self.hidden_size)
        columns = [
            pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), vectors),
            pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), pa.array(self.slot_tokens)),
            pa.ListArray.from_arrays(pa.array(self.impact_offsets, pa.int32()), pa.array(self.impact_ids)),
            pa.ListArray.from_arrays(pa.array(self.impact_offsets, pa.int32()), pa.array(self.impact_weights)),
            pa.array(self.n_tokens),
        ]
        return pa.Table.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)],
            schema=pa.schema(fields),
        )

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Representations:
        """Convert a table of `to_arrow` back; other columns are ignored."""
        vectors_MH, offsets = read_vectors(table)
        impact_ids, impact_weights, impact_offsets = read_impacts(table)
        slots = _combined(table, "slot_tokens")
        return cls(
            vectors_MH,
            offsets,
            slots.flatten().to_numpy(zero_copy_only=False),
            impact_ids,
            impact_weights,
            impact_offsets,
            _combined(table, "n_tokens").to_numpy(zero_copy_only=False),
        )


def read_vectors(table: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return float16 [M, H] and int64 offsets [N + 1] of the column `reps`."""
    column = _combined(table, "reps")
    hidden_size = column.type.value_type.list_size
    flat = column.flatten().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, hidden_size), _offsets(column)


def read_impacts(table: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids int32 [T], weights float32 [T] and int64 offsets [N + 1] of the impact columns."""
    ids = _combined(table, "impact_ids")
    return ids.flatten().to_numpy(zero_copy_only=False), read_weights(table)[0], _offsets(ids)


def read_weights(table: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return weights float32 [T] and int64 offsets [N + 1] of the column `impact_weights`."""
    weights = _combined(table, "impact_weights")
    return weights.flatten().to_numpy(zero_copy_only=False), _offsets(weights)


def not_finite(texts: Representations) -> np.ndarray:
    """Return the texts whose vectors or impact weights contain NaN or infinity, int64 ascending."""
    return _with_not_finite((texts.vectors_MH, texts.offsets), (texts.impact_weights, texts.impact_offsets))


def rows_not_finite(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Return the rows with NaN or infinity in `reps` or `impact_weights`, int64 ascending; each column is optional."""
    columns = {"reps": read_vectors, "impact_weights": read_weights}
    return _with_not_finite(*(read(table) for name, read in columns.items() if name in table.schema.names))


def refuse_queries(queries: Representations, texts: Sequence[str]) -> None:
    """Raise ValueError if a query contains NaN or infinity."""
    wrong = not_finite(queries)
    if len(wrong):
        raise ValueError(
            f"query number {wrong[0]} ('{shortened(texts[wrong[0]])}') is encoded as NaN or infinity: "
            "look for damaged weights, or encode in float32"
        )


def _combined(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _offsets(column: pa.ListArray) -> np.ndarray:
    # Slices keep their parent's offsets.
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets - offsets[0]


def _with_not_finite(*parts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    wrong = [np.empty(0, np.int64)]
    for values_M, offsets in parts:
        if not _all_finite(values_M):
            wrong_M = ~np.isfinite(values_M.reshape(len(values_M), -1)).all(axis=1)
            wrong.append(np.searchsorted(offsets, np.flatnonzero(wrong_M), side="right") - 1)
    return np.unique(np.concatenate(wrong))


def _all_finite(values_N: np.ndarray) -> bool:
    if values_N.dtype != np.float16:
        return bool(np.isfinite(values_N).all())
    # Only NaN and infinity have all exponent bits set; numpy's isfinite is ten times slower for fp16.
    return bool((values_N.view(np.uint16) & 0x7FFF).max(initial=0) < 0x7C00)

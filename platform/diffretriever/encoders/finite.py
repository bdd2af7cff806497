"""Representations with NaN or infinity, which make every ranking wrong: nothing may store or search them.

Legend: N values, M rows of values, T texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from diffretriever.encoders.representations import Representations, read_vectors, read_weights

_ENDLESS, _ENDLESS_NEGATIVE = 0x7C00, 0xFC00
"""Bits of the two infinities of fp16; those of NaN are above them, those of all other numbers of a sign below."""
_SHOWN = 60


def not_finite(texts: Representations) -> np.ndarray:
    """Return the texts, int64 [T] ascending, whose vectors or impact weights hold NaN or infinity."""
    return _either((texts.vectors_MH, texts.offsets), (texts.impact_weights, texts.impact_offsets))


def rows_not_finite(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Return the same of a table's rows, by whichever of the columns `reps` and `impact_weights` it has."""
    columns = {"reps": read_vectors, "impact_weights": read_weights}
    return _either(*(read(table) for name, read in columns.items() if name in table.schema.names))


def refuse_queries(queries: Representations, texts: Sequence[str] | None = None) -> None:
    """Raise ValueError for the first query that holds NaN or infinity, by its number and, if given, its text."""
    wrong_T = not_finite(queries)
    if len(wrong_T):
        text = "" if texts is None else f" ('{texts[wrong_T[0]][:_SHOWN]}')"
        raise ValueError(
            f"query number {wrong_T[0]}{text} is encoded as NaN or infinity, so nothing can be found for it: "
            "look for damaged weights, or encode in float32"
        )


def _either(*parts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the texts that own NaN or infinity in any of the parts: values [M, ...], and the texts' offsets."""
    wrong = [_owners(values_M, offsets) for values_M, offsets in parts if not _all_finite(values_M)]
    return np.unique(np.concatenate(wrong)) if wrong else np.empty(0, np.int64)


def _owners(values_M: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    wrong_M = ~np.isfinite(values_M.reshape(len(values_M), -1)).all(axis=1)
    owners_T: np.ndarray = np.searchsorted(offsets, np.flatnonzero(wrong_M), side="right") - 1
    return owners_T


def _all_finite(values_N: np.ndarray) -> bool:
    """Return whether all of float16 or float32 [N, ...] are finite."""
    if values_N.dtype != np.float16:
        return bool(np.isfinite(values_N).all())
    # numpy widens halves one by one to look at them: the largest of their bits takes a tenth of the time.
    bits_N = values_N.view(np.uint16)
    return bool(values_N.view(np.int16).max(initial=0) < _ENDLESS and bits_N.max(initial=0) < _ENDLESS_NEGATIVE)

"""An index version as segments: fragments with 8-bit codes, and those that have none yet.

Legend: P passages of a segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffretriever.files import is_local
from diffretriever.index.fragment_codes import FragmentCodes
from diffretriever.index.table import PassageIndex, fragment_key

_BUILD_ROWS = 4096


@dataclass(frozen=True)
class Segment:
    """A fragment's codes and where its passages are in the table now."""

    codes: FragmentCodes
    positions_P: np.ndarray
    """int64 [P], position in table order; negative for a passage deleted since."""


def open_segments(index: PassageIndex) -> tuple[list[Segment], list[Any]]:
    """Return the segments of an index version, and the fragments that have no codes."""
    segments: list[Segment] = []
    without: list[Any] = []
    start = 0
    for fragment in index.fragments():
        live = fragment.count_rows()
        codes = FragmentCodes.open(codes_folder(index, fragment)) if is_local(index.uri) else None
        # Codes made after a deletion lack rows that a reader of an older version still sees.
        if codes is None or len(codes.rows_P) < live:
            without.append(fragment)
        else:
            segments.append(Segment(codes, start + _live_positions(index, fragment, codes, live)))
        start += live
    return segments, without


def build_codes(index: PassageIndex) -> int:
    """Make the codes that fragments lack; return how many fragments got some. Killed, it is simply run again.

    Raises:
        ValueError: the index lies on an object store, or holds no vectors.
    """
    hidden_size = index.manifest.hidden_size
    if hidden_size is None:
        raise ValueError(f"{index.uri} holds no vectors: there is nothing to make codes of")
    if not is_local(index.uri):
        raise ValueError(f"{index.uri}: codes are memory-mapped files, so the index must lie on a local disk")
    _, without = open_segments(index)
    for fragment in without:
        batches = index.fragment_batches(fragment, ["reps"], _BUILD_ROWS)
        FragmentCodes.build(codes_folder(index, fragment), batches, hidden_size)
    return len(without)


def codes_folder(index: PassageIndex, fragment: Any) -> Path:
    """Return where a fragment's codes lie."""
    return Path(index.uri) / "codes" / fragment_key(fragment)


def _live_positions(index: PassageIndex, fragment: Any, codes: FragmentCodes, live: int) -> np.ndarray:
    """Return the place of each coded passage among the fragment's live rows; far below 0 for deleted ones."""
    n_coded = len(codes.rows_P)
    if n_coded == live:
        return np.arange(live)
    batches = index.fragment_batches(fragment, [], 65536)
    live_rows = np.concatenate([batch.column("_rowaddr").to_numpy() & 0xFFFFFFFF for batch in batches])
    places_P = np.searchsorted(live_rows, codes.rows_P)
    found_P = live_rows[np.minimum(places_P, live - 1)] == codes.rows_P
    return np.where(found_P, places_P, np.iinfo(np.int64).min // 2)

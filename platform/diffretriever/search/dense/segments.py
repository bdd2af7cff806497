"""An index version as segments: fragments with codes, and those that have none yet.

Legend: P passages of a segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffretriever.files import is_local
from diffretriever.index.finite import finite_rows
from diffretriever.index.fragment_codes import FragmentCodes
from diffretriever.index.live_rows import live_rows
from diffretriever.index.mapped_files import with_files
from diffretriever.index.table import PassageIndex, fragment_key

_BUILD_ROWS = 4096


@dataclass(frozen=True)
class Segment:
    """A fragment, its codes, and which of its passages are still in the table."""

    fragment: Any
    folder: Path
    """Where its files lie."""
    codes: FragmentCodes
    live_P: np.ndarray
    """bool [P]; False for a passage deleted since."""


def open_segments(index: PassageIndex) -> tuple[list[Segment], list[Any]]:
    """Return the segments of an index version, and the fragments that have no codes."""
    if not is_local(index.uri):
        return [], index.fragments()
    found, without = with_files(index, lambda fragment: FragmentCodes.open(codes_folder(index, fragment)))
    segments = [
        Segment(fragment, codes_folder(index, fragment), codes, live_rows(index, fragment, codes.rows_P))
        for fragment, codes in found
    ]
    return segments, without


def build_codes(index: PassageIndex) -> int:
    """Make the codes that fragments lack; return how many fragments got some. Killed, it is simply run again.

    Raises:
        ValueError: the index lies on an object store, or holds no vectors, or some that are not finite.
    """
    if index.manifest.hidden_size is None:
        raise ValueError(f"{index.uri} holds no vectors: there is nothing to make codes of")
    if not is_local(index.uri):
        raise ValueError(f"{index.uri}: codes are memory-mapped files, so the index must lie on a local disk")
    _, without = open_segments(index)
    for fragment in without:
        build_fragment_codes(index, fragment)
    return len(without)


def build_fragment_codes(index: PassageIndex, fragment: Any) -> None:
    """Make the codes of one fragment.

    Raises:
        ValueError: a passage's vectors hold NaN or infinity; the message names it.
    """
    assert index.manifest.hidden_size is not None, "there are vectors"
    batches = finite_rows(index.uri, index.fragment_batches(fragment, ["id", "reps"], _BUILD_ROWS))
    FragmentCodes.build(codes_folder(index, fragment), batches, index.manifest.hidden_size)


def codes_folder(index: PassageIndex, fragment: Any) -> Path:
    """Return where a fragment's codes lie."""
    return Path(index.uri) / "codes" / fragment_key(fragment)

"""An index version as segments: fragments with postings, and those that have none yet.

Legend: P passages of a segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffretriever.files import is_local
from diffretriever.index.finite import NotFiniteError, finite_rows
from diffretriever.index.fragment_postings import FragmentPostings
from diffretriever.index.live_rows import live_rows
from diffretriever.index.mapped_files import with_files
from diffretriever.index.table import PassageIndex, fragment_key

_BUILD_ROWS = 4096


@dataclass(frozen=True)
class Segment:
    """A fragment's postings, and which of its passages are not in the table any more."""

    postings: FragmentPostings
    deleted_P: np.ndarray | None
    """bool [P]; None where all are there."""


def may_have_postings(index: PassageIndex) -> bool:
    """Return whether there are impacts to score by, and a local disk to keep files on."""
    return is_local(index.uri) and _has_impacts(index)


def _has_impacts(index: PassageIndex) -> bool:
    # BM25 has sparse scores as well, but no vocabulary of a model's.
    return index.manifest.vocab_size is not None and "sparse" in index.manifest.retriever.modes


def open_segments(index: PassageIndex) -> tuple[list[Segment], list[Any]]:
    """Return the segments of an index version, and the fragments that have no postings."""
    if not may_have_postings(index):
        return [], index.fragments()
    found, without = with_files(index, lambda fragment: FragmentPostings.open(postings_folder(index, fragment)))
    return [Segment(postings, _deleted(index, fragment, postings)) for fragment, postings in found], without


def build_postings(index: PassageIndex) -> int:
    """Make the postings that fragments lack; return how many fragments got some. Killed, it is simply run again.

    Raises:
        ValueError: the index lies on an object store, has no impacts, or some that are not sound.
    """
    if not _has_impacts(index):
        raise ValueError(f"{index.uri} holds no impacts: there is nothing to make postings of")
    if not is_local(index.uri):
        raise ValueError(f"{index.uri}: postings are memory-mapped files, so the index must lie on a local disk")
    _, without = open_segments(index)
    for fragment in without:
        build_fragment_postings(index, fragment)
    return len(without)


def build_fragment_postings(index: PassageIndex, fragment: Any) -> None:
    """Make the postings of one fragment.

    Raises:
        ValueError: its impacts are not sound.
    """
    assert index.manifest.vocab_size is not None, "impacts point into a vocabulary"
    columns = ["id", "impact_ids", "impact_weights"]
    batches = finite_rows(index.uri, index.fragment_batches(fragment, columns, _BUILD_ROWS))
    try:
        FragmentPostings.build(postings_folder(index, fragment), batches, index.manifest.vocab_size)
    except NotFiniteError:
        raise
    except ValueError as error:
        raise ValueError(
            f"no postings can be made of fragment {fragment_key(fragment)}: {error}; "
            f"`python jobs/inspect_index.py --index {index.uri} --verify` names the passages"
        ) from error


def postings_folder(index: PassageIndex, fragment: Any) -> Path:
    """Return where a fragment's postings lie."""
    return Path(index.uri) / "postings" / fragment_key(fragment)


def _deleted(index: PassageIndex, fragment: Any, postings: FragmentPostings) -> np.ndarray | None:
    live_P = live_rows(index, fragment, postings.rows_P)
    return None if live_P.all() else ~live_P

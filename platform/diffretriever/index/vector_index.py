"""Lance's own index over the slot vectors of a table. It names passages; the distances it gives are estimates.

Legend: M query vectors, H hidden size, C passages found.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from diffretriever.index.table import PassageIndex, refused_if_changed
from diffretriever.index.writer import WriterLock

Kind: TypeAlias = Literal["IVF_RQ", "IVF_SQ"]
"""How vectors are kept: one bit a dimension, or eight."""

_OPTIONS: dict[Kind, dict[str, int]] = {"IVF_RQ": {"num_bits": 1}, "IVF_SQ": {}}


def build_vector_index(index: PassageIndex, kind: Kind, n_partitions: int) -> None:
    """Index all passages anew; `index` moves to the version that has the index.

    Raises:
        ValueError: the index stores codes in place of vectors, or another process writes to it.
    """
    if index.manifest.decodes:
        raise ValueError(
            f"{index.uri} is compressed, and Lance can only index vectors that are stored: take another candidate "
            "index, for example --candidates mean"
        )
    with WriterLock(index.uri), refused_if_changed(index.uri):
        index.refresh()
        index.dataset.create_index(
            "reps", kind, name=_name(kind), metric="cosine", num_partitions=n_partitions, replace=True, **_OPTIONS[kind]
        )
        index.refresh()


def indexed_fragments(index: PassageIndex, kind: Kind) -> set[int]:
    """Return the ids of the fragments that this version's index knows; none where there is no index."""
    return {fragment for part in _parts(index, kind) for fragment in part.fragment_ids}


def index_parts(index: PassageIndex, kind: Kind) -> list[str]:
    """Return the names by which `nearest` is told which index to use."""
    return [str(part.uuid) for part in _parts(index, kind)]


def nearest(index: PassageIndex, parts: list[str], vectors_MH: np.ndarray, n: int, n_probes: int) -> np.ndarray:
    """Return row addresses, uint64 [C], of at most n indexed passages for one query, most promising first.

    Args:
        index: the table.
        parts: what `index_parts` says.
        vectors_MH: float32 [M, H], the query's vectors.
        n: passages wanted.
        n_probes: partitions to look into.
    """
    scanner = index.dataset.scanner(
        columns=[],
        nearest={"column": "reps", "q": vectors_MH.tolist(), "k": n, "nprobes": n_probes, "metric": "cosine"},
        index_segments=parts,
        fast_search=True,
        with_row_address=True,
        disable_scoring_autoprojection=True,
    )
    addresses: np.ndarray = scanner.to_table().column("_rowaddr").to_numpy()
    return addresses


def _parts(index: PassageIndex, kind: Kind) -> list[Any]:
    return [part for each in index.dataset.describe_indices() if each.name == _name(kind) for part in each.segments]


def _name(kind: Kind) -> str:
    return f"slots_{kind.lower()}"

"""Sparse search: one interface over ways to find the passages with the largest inner product of impacts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.search.sparse.stream import StreamingImpacts

if TYPE_CHECKING:
    from diffretriever.index.table import PassageIndex
    from diffretriever.search.sparse.base import SparseSearch
    from schemas.jobs import SearchOptions


def open_sparse(index: PassageIndex, options: SearchOptions) -> SparseSearch:
    """Return the fastest search that the index is ready for."""
    return StreamingImpacts(index, options.memory_mb)

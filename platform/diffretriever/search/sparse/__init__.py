"""Sparse search: one interface over ways to find the passages with the largest inner product of impacts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.search.sparse.postings import PostingsSearch
from diffretriever.search.sparse.stream import StreamingImpacts

if TYPE_CHECKING:
    from diffretriever.index.table import PassageIndex
    from diffretriever.schemas.search import SearchOptions
    from diffretriever.search.sparse.base import SparseSearch


SEARCHES: tuple[type[SparseSearch], ...] = (PostingsSearch, StreamingImpacts)
"""The ways to search by impacts, the fastest first. Adding one is a file here and an entry."""


def open_sparse(index: PassageIndex, options: SearchOptions) -> SparseSearch:
    """Return the fastest search that the index is ready for: an inverted index, or a stream of the stored impacts."""
    opened = (search.open(index, options) for search in SEARCHES)
    return next(search for search in opened if search is not None)

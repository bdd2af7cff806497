"""Sparse search: one interface over ways to find the passages with the largest inner product of impacts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from diffretriever.search.sparse.postings import PostingsSearch, StreamingImpacts, open_inverted

if TYPE_CHECKING:
    from diffretriever.index.table import PassageIndex
    from diffretriever.schemas.search import SearchOptions
    from diffretriever.search.encoded import EncodedSearch


def open_sparse(index: PassageIndex, options: SearchOptions) -> EncodedSearch:
    """Return the fastest search that the index is ready for: an inverted index, or a stream of the stored impacts."""
    stream = StreamingImpacts(index, options.memory_mb)
    inverted, without = open_inverted(index)
    return PostingsSearch(inverted, without, stream, torch.get_num_threads()) if inverted else stream

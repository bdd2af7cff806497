"""Dense search: one interface over exact scans and candidate indexes. Every returned score is exact fp32 MaxSim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffretriever.search.dense.candidates import CandidateSearch
from diffretriever.search.dense.coded import CodedScan
from diffretriever.search.dense.compressed import CompressedScan
from diffretriever.search.dense.stream import StreamingScan

if TYPE_CHECKING:
    import torch

    from diffretriever.index.table import PassageIndex
    from diffretriever.schemas.search import SearchOptions
    from diffretriever.search.dense.base import DenseSearch


SEARCHES: tuple[type[DenseSearch], ...] = (CandidateSearch, CodedScan, CompressedScan, StreamingScan)
"""The ways to search by MaxSim, the fastest first. Adding one is a file here and an entry."""


def open_dense(index: PassageIndex, options: SearchOptions, device: torch.device) -> DenseSearch:
    """Return the fastest search that the index is ready for: candidates, the codes of all passages, or a stream.

    Raises:
        ValueError: the index holds no vectors, or a number of candidates is asked for and there is no candidate index.
    """
    opened = (search.open(index, options, device) for search in SEARCHES)
    return next(search for search in opened if search is not None)

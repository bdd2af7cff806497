"""Sparse search: one interface over ways to find the passages with the largest inner product of impacts."""

from diffretriever.search.sparse.postings import open_sparse

__all__ = ["open_sparse"]

"""What of a ranking goes into a run."""

from __future__ import annotations

from collections.abc import Sequence

from diffretriever.scoring.topk import Hit


def searched_depth(top_k: int, *, exclude_self: bool) -> int:
    """Return how many passages to search for: one more than asked where a query's own document may have to go."""
    return top_k + exclude_self


def kept_hits(query_id: str, hits: Sequence[Hit], top_k: int, *, exclude_self: bool) -> list[Hit]:
    """Return the best `top_k` hits, the query's own document (same id) left out if asked for."""
    return [hit for hit in hits if not (exclude_self and hit[0] == query_id)][:top_k]

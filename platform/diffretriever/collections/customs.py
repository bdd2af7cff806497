"""How published results of public collections are made, by the collection's name: its own measure, what is left out."""

from __future__ import annotations

_EXCLUDING_SELF = frozenset({"arguana", "quora"})
_MSMARCO = "msmarco"
_DOCUMENTS = "document"
_JUDGED_ONCE = ("train", "dev")
"""MS MARCO's queries with one answer; those of TREC have graded judgements."""


def excludes_self(collection: str) -> bool:
    """Return whether a query's own document (same id) is left out, as BEIR does: its ArguAna and Quora.

    There queries are passages. Elsewhere equal ids are a coincidence: Cranfield numbers both from 1.
    """
    return collection.lower() in _EXCLUDING_SELF


def own_measure(collection: str, split: str) -> str:
    """Return the measure that results are published in (paper §4): MRR@10 for MS MARCO's own queries, else nDCG@10."""
    is_judged_once = collection.lower().startswith(_MSMARCO) and split.startswith(_JUDGED_ONCE)
    return "MRR@10" if is_judged_once else "nDCG@10"


def least_relevance(collection: str, split: str) -> int:
    """Return the lowest grade that is relevant to a measure without grades.

    TREC counts MS MARCO's passages from grade 2 on, its documents from 1 on as everywhere.
    """
    is_of_passages = collection.lower().startswith(_MSMARCO) and _DOCUMENTS not in collection.lower()
    return 2 if is_of_passages and not split.startswith(_JUDGED_ONCE) else 1

"""What training is made of: a query with its judged passages as files hold it, and what a step takes of it."""

from __future__ import annotations

from dataclasses import dataclass

from diffretriever.collections.base import Passage


@dataclass(frozen=True, slots=True)
class Example:
    """One query with its judged passages.

    There is at least one positive; no passage is among the positives twice, nor in both lists, by id or by text.
    """

    query_id: str
    query: str
    positives: tuple[Passage, ...]
    """Passages that answer the query."""
    negatives: tuple[Passage, ...]
    """Hard negatives, best first where they were mined; may be empty."""
    scores: tuple[float, ...] | None
    """A teacher's scores of the positives, then of the negatives, for distillation; None where there are none."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one query brings to a step."""

    query_id: str
    query: str
    passages: tuple[Passage, ...]
    """The positive, then the negatives."""
    scores: tuple[float, ...] | None
    """The teacher's scores of `passages`; None where the example has none or a passage is borrowed from another."""
    answers: tuple[int, ...] = ()
    """`text_keys.passage_key` of all passages known to answer the query; the positive need not be listed."""

"""What an explanation of one passage's scores says. Slots are counted from 0."""

from __future__ import annotations

from schemas.base import Model


class Word(Model):
    """An entry of the vocabulary as text."""

    word: str
    weight: float | None
    """Its impact in the text that it is of, log(1 + logit); None where the sparse side does not keep it."""


class SlotMatch(Model):
    """A query slot and the passage slot nearest to it (MaxSim)."""

    slot: int
    """Number of the query slot."""
    words: list[Word]
    """What the query slot predicts, strongest first; of the query's own content words."""
    passage_slot: int
    """Number of the passage slot with the largest product, the first of equals."""
    passage_words: list[Word]
    """What that predicts, of the passage's own content words."""
    product: float
    """Inner product of the two vectors."""
    share: float | None
    """Part of the dense score that comes from this slot; all shares add up to 1. None where the score is 0."""


class TermMatch(Model):
    """A word that query and passage share."""

    word: str
    query_weight: float
    passage_weight: float
    product: float
    """Of the two weights; all products add up to the sparse score."""
    share: float
    """Part of the sparse score."""


class Explanation(Model):
    """What the scores of one passage are made of."""

    slots: list[SlotMatch]
    """One for each query slot, in their order; the mean of their products is the dense score."""
    passage_slots: list[list[Word]]
    """The words of every slot of the passage, matched or not."""
    terms: list[TermMatch]
    """Largest product first; empty without a sparse side."""

"""Describing a collection by its slots' predicted tokens: the job's config and its result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from diffretriever.schemas.base import Model
from diffretriever.schemas.search import IndexOptions
from diffretriever.schemas.serve import MOST_READ_WORDS, READ_WORDS


class DescribeJob(IndexOptions):
    """Describe a collection by the tokens that its passages' slots predict, for each slot and by topic."""

    sample: PositiveInt = 2000
    """Passages to read, a random sample."""
    topics: PositiveInt = 12
    """Number of topics."""
    words: Annotated[int, Field(ge=1, le=MOST_READ_WORDS)] = READ_WORDS
    """Predicted tokens to read per slot, and to show per slot and topic."""
    device: str = "auto"
    """Device: `cpu`, `cuda`, `cuda:1`, or `auto`, a GPU if available."""
    json_output: bool = False
    """Print JSON instead of text."""


class SlotWord(Model):
    """A predicted word of one slot."""

    word: str
    share: float
    """Share of the passages whose slot predicts it."""


class SlotDescription(Model):
    """The words of one slot, over all passages that have it."""

    slot: int
    """From 0."""
    passages: int
    words: list[SlotWord]
    """The most frequent first."""


class Example(Model):
    """A passage of a topic."""

    id: str
    title: str


class Topic(Model):
    """Passages whose vectors point the same way."""

    passages: int
    share: float
    """Part of the passages that were read."""
    words: list[str]
    """Words predicted more often than in other passages."""
    examples: list[Example]
    """The passages nearest to its centroid."""


class IndexDescription(Model):
    """The output of `describe_index.py`."""

    index: str
    """Where it is."""
    retriever: str
    """Its title."""
    passages: int
    """Passages that it holds."""
    read: int
    """Of these, how many were read."""
    slots: list[SlotDescription]
    topics: list[Topic]
    """The largest first."""

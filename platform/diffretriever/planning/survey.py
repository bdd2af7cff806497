"""What a plan needs to know of a collection and of an encoder, found by counting the one and timing the other."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SAMPLE = 256
_WARM_UP = 16


class Text(Protocol):
    """A passage, as far as it matters here."""

    @property
    def title(self) -> str:
        """Blank where there is none."""

    @property
    def text(self) -> str:
        """The passage itself."""


class PassageEncoder(Protocol):
    """An encoder, as far as it matters here."""

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        """Return representations."""


@dataclass(frozen=True)
class Counted:
    """A collection's size."""

    passages: int
    text_bytes: float
    """Average of title and text, UTF-8."""
    sample: list[Text]
    """Passages drawn at random."""


@dataclass(frozen=True)
class Measured:
    """What encoding a sample gave; all but `passages`, `rate` and `hidden_size` are averages of a passage."""

    passages: int
    rate: float
    """Passages a second."""
    hidden_size: int
    tokens: float
    vectors: float
    impacts: float


def count(passages: Iterable[Text]) -> Counted:
    """Count passages and draw a sample, in one pass.

    Raises:
        ValueError: there are none.
    """
    draw = random.Random(0)  # noqa: S311 (no secret)
    n, size = 0, 0
    sample: list[Text] = []
    for passage in passages:
        n += 1
        size += len(passage.title.encode()) + len(passage.text.encode())
        place = n - 1 if n <= SAMPLE else draw.randrange(n)
        if place < SAMPLE:
            sample[place : place + 1] = [passage]
    if n == 0:
        raise ValueError("the collection has no passages that can be used: there is nothing to plan for")
    return Counted(n, size / n, sample)


def measure(encoder: PassageEncoder, sample: Sequence[Text]) -> Measured:
    """Encode the sample, preparation included, and time it; a part of it is encoded before, to warm up."""
    titles, texts = [p.title for p in sample], [p.text for p in sample]
    encoder.encode_passages(titles[:_WARM_UP], texts[:_WARM_UP])
    start = time.perf_counter()
    encoded = encoder.encode_passages(titles, texts)
    seconds = time.perf_counter() - start
    n = len(sample)
    return Measured(
        passages=n,
        rate=n / seconds,
        hidden_size=encoded.hidden_size,
        tokens=float(encoded.n_tokens.mean()),
        vectors=len(encoded.vectors_MH) / n,
        impacts=len(encoded.impact_ids) / n,
    )

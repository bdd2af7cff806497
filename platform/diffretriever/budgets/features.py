"""Cheap features of a query: from its text and subwords (paper §6.3), the collection, or one short forward pass.

To add a feature, write a function and a line in `FEATURES`. Selectors use features that are known before encoding;
features of a forward pass are for analysis only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffretriever.encoders.words import content_words, words_of
from diffretriever.schemas.base import suggest


@dataclass(frozen=True, slots=True)
class DocumentFrequencies:
    """Number of passages that contain each word.

    Attributes:
        passages: number of passages.
        of_word: lower-case word of letters and digits → passages that contain it; missing words count 0.
    """

    passages: int
    of_word: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FirstSlots:
    """Features of a query's first slots; NaN if that number of slots was not encoded.

    Attributes:
        confidence: largest term weight with one slot, 0 if there is none.
        agreement: cosine of the two vectors with two slots.
        added: relative increase of the sum of term weights by the second slot.
    """

    confidence: float = math.nan
    agreement: float = math.nan
    added: float = math.nan


@dataclass(frozen=True, slots=True)
class QueryText:
    """The input of features.

    Attributes:
        text: the raw query.
        token_ids: its subwords without special tokens.
        frequencies: of the collection, if known.
        slots: of a forward pass, if there was one.
    """

    text: str
    token_ids: Sequence[int]
    frequencies: DocumentFrequencies | None = None
    slots: FirstSlots = FirstSlots()

    @property
    def encoded_slots(self) -> int:
        """The number of its slots that are known, up to two."""
        return int(not math.isnan(self.slots.confidence)) + int(not math.isnan(self.slots.agreement))


@dataclass(frozen=True, slots=True)
class Feature:
    """A numeric feature of a query.

    Attributes:
        title: for axes and tables, with its unit.
        compute: returns a finite number.
        needs_frequencies: whether it needs `QueryText.frequencies`.
        needs_slots: number of slots it needs, which are unknown before encoding.
    """

    title: str
    compute: Callable[[QueryText], float]
    needs_frequencies: bool = False
    needs_slots: int = 0


def features_of(query: QueryText) -> dict[str, float]:
    """Return all features that can be computed of `query`, in the order of `FEATURES`."""
    has_frequencies = query.frequencies is not None
    return {
        name: feature.compute(query)
        for name, feature in FEATURES.items()
        if feature.needs_slots <= query.encoded_slots and (has_frequencies or not feature.needs_frequencies)
    }


def count_documents(texts: Iterable[str]) -> DocumentFrequencies:
    """Count the passages that contain each word, in one pass over their texts."""
    counts: Counter[str] = Counter()
    passages = 0
    for text in texts:
        counts.update(words_of(text))
        passages += 1
    return DocumentFrequencies(passages, counts)


def check_names(names: Iterable[str]) -> None:
    """Raise `ValueError` naming the first of `names` that is no feature."""
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"there is no query feature '{name}'.{suggest(name, FEATURES)}")


def _length(query: QueryText) -> float:
    return float(len(query.token_ids))


def _entropy(query: QueryText) -> float:
    """Shannon entropy of the token ids; 0 if empty."""
    n = len(query.token_ids)
    # Sorted, so that queries of equal counts get the same bits, and tie.
    shares = [count / n for count in sorted(Counter(query.token_ids).values())]
    return abs(math.fsum(share * math.log2(share) for share in shares))


def _content_words(query: QueryText) -> float:
    return float(len(content_words(query.text)))


def _idfs(query: QueryText) -> list[float]:
    """Inverse document frequency of each distinct word, in bits: log2((N + 1) / (n + 1))."""
    assert query.frequencies is not None, "the feature needs frequencies"
    passages, of_word = query.frequencies.passages, query.frequencies.of_word
    return [math.log2((passages + 1) / (of_word.get(word, 0) + 1)) for word in sorted(words_of(query.text))]


def _mean_idf(query: QueryText) -> float:
    idfs = _idfs(query)
    return math.fsum(idfs) / len(idfs) if idfs else 0.0


def _max_idf(query: QueryText) -> float:
    return max(_idfs(query), default=0.0)


FEATURES: dict[str, Feature] = {
    "length": Feature("query length (subwords)", _length),
    "entropy": Feature("query entropy (bits)", _entropy),
    "content_words": Feature("content words (distinct)", _content_words),
    "mean_idf": Feature("mean idf (bits)", _mean_idf, needs_frequencies=True),
    "max_idf": Feature("largest idf (bits)", _max_idf, needs_frequencies=True),
    "confidence": Feature(
        "slot confidence (largest impact at K_q = 1)", lambda query: query.slots.confidence, needs_slots=1
    ),
    "agreement": Feature("cosine of the first two slots", lambda query: query.slots.agreement, needs_slots=2),
    "added": Feature("impacts added by the second slot (share)", lambda query: query.slots.added, needs_slots=2),
}
"""The registry, by name."""

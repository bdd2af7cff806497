"""What can be known of a query cheaply: from its text and subwords alone (paper §6.3), the collection, one short pass.

Adding a feature is a function and a line in `FEATURES`. A selector may look at those that are known before the query is
encoded; what needs a pass of the encoder is there to be analysed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffretriever.encoders.preparer import content_words, words_of
from diffretriever.schemas.base import suggest


@dataclass(frozen=True, slots=True)
class DocumentFrequencies:
    """How many of the passages hold each word.

    Attributes:
        passages: number of passages.
        of_word: lower-case run of letters and digits → passages that hold it; words that none holds may be left out.
    """

    passages: int
    of_word: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FirstSlots:
    """Figures of a query's first slots; NaN without a pass of the encoder with so many.

    Attributes:
        confidence: largest impact of its encoding with one slot, 0 without any.
        agreement: cosine of its two vectors when encoded with two slots.
        added: by what share of it the second slot raises the sum of impacts.
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
        frequencies: of the collection that is searched, if they are known.
        slots: of a pass of the encoder, if there was one.
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
    """One number of a query.

    Attributes:
        title: for axes and tables, with its unit.
        compute: of the query, to a finite number.
        needs_frequencies: whether it needs `QueryText.frequencies`.
        needs_slots: how many slots it needs, which are unknown before the query is encoded.
    """

    title: str
    compute: Callable[[QueryText], float]
    needs_frequencies: bool = False
    needs_slots: int = 0


def features_of(query: QueryText) -> dict[str, float]:
    """Return every feature that can be computed of `query`, by name in the order of `FEATURES`."""
    has_frequencies = query.frequencies is not None
    return {
        name: feature.compute(query)
        for name, feature in FEATURES.items()
        if feature.needs_slots <= query.encoded_slots and (has_frequencies or not feature.needs_frequencies)
    }


def count_documents(texts: Iterable[str]) -> DocumentFrequencies:
    """Count the passages that hold each word, in one pass over their texts."""
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
    """Shannon entropy of the distribution of token ids within the query; 0 for an empty one."""
    n = len(query.token_ids)
    # Sorted, so that queries of equal counts get the same bits, and tie.
    shares = [count / n for count in sorted(Counter(query.token_ids).values())]
    return abs(math.fsum(share * math.log2(share) for share in shares))


def _content_words(query: QueryText) -> float:
    return float(len(content_words(query.text)))


def _idfs(query: QueryText) -> list[float]:
    """Inverse document frequency of each distinct word, in bits: log2((N + 1) / (n + 1)), never negative."""
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

"""What can be known of a query before it is encoded, from its text and subwords alone (paper §6.3).

Adding a feature is a function and a line in `FEATURES`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffretriever.encoders.content_words import stop_words
from schemas.base import suggest

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class DocumentFrequencies:
    """How many of the passages hold each token.

    Attributes:
        passages: number of passages, at least 1.
        of_token: token id → passages that hold it; tokens that none holds may be left out.
    """

    passages: int
    of_token: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class QueryText:
    """What features are computed from.

    Attributes:
        text: the raw query.
        token_ids: its subwords, no special tokens among them.
        frequencies: of the collection that is searched, where they are known.
    """

    text: str
    token_ids: Sequence[int]
    frequencies: DocumentFrequencies | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """One number of a query.

    Attributes:
        title: for axes and tables, with its unit.
        compute: of the query, to a finite number.
        needs_frequencies: whether it wants `QueryText.frequencies`.
    """

    title: str
    compute: Callable[[QueryText], float]
    needs_frequencies: bool = False


def features_of(query: QueryText) -> dict[str, float]:
    """Return every feature that can be computed of `query`, by name in the order of `FEATURES`."""
    return {
        name: feature.compute(query)
        for name, feature in FEATURES.items()
        if query.frequencies is not None or not feature.needs_frequencies
    }


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
    return float(len(set(_WORD.findall(query.text.lower())) - stop_words()))


def _idfs(query: QueryText) -> list[float]:
    """Inverse document frequency of each distinct token, in bits: log2((N + 1) / (n + 1)), never negative."""
    assert query.frequencies is not None, "the registry says that this feature needs them"
    frequencies = query.frequencies
    return [
        math.log2((frequencies.passages + 1) / (frequencies.of_token.get(token, 0) + 1))
        for token in sorted(set(query.token_ids))
    ]


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
}
"""The registry, by name."""

"""The parts of answers that are read from the index: passages with their scores, words and explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from diffretriever.encoders.representations import Representations
from diffretriever.scoring.topk import Hit
from diffretriever.serving.explain import NameWord, explain, slot_words, terms
from diffretriever.serving.view import View
from schemas.retriever_parts import Mode
from schemas.serve import BudgetUsed, EncodedQuery, EncodedSlot, SearchHit


class Words(Protocol):
    """Knows the vocabulary."""

    def word(self, token: int) -> str:
        """Return a vocabulary entry as text."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best passages of one query."""

    mode: Mode
    hits: list[Hit]
    """Best first."""
    scores: dict[Mode, dict[str, float]]
    """Score by passage in each list that the ranking was made of."""

    def scores_of(self, passage: str, score: float) -> dict[Mode, float | None]:
        """Return every score known of a passage, that of the ranking first."""
        return {self.mode: score, **{name: known.get(passage) for name, known in self.scores.items()}}


def ids_of(rankings: Sequence[Ranking]) -> list[str]:
    """Return the passages of rankings, each once."""
    return list(dict.fromkeys(passage for ranking in rankings for passage, _ in ranking.hits))


def hits_of(
    view: View,
    rankings: Sequence[Ranking],
    texts: Mapping[str, dict[str, str]],
    queries: Representations | None,
    words: Words,
) -> list[list[SearchHit]]:
    """Put rankings and passages together; with `queries`, explain them.

    Args:
        view: the version that was searched.
        rankings: one for each query.
        texts: title, text and collection of at least their passages, by id.
        queries: their representations, if explanations are wanted.
        words: of the encoder.
    """
    stored = {} if queries is None else view.representations(ids_of(rankings))
    answers: list[list[SearchHit]] = []
    for number, ranking in enumerate(rankings):
        query = None if queries is None else queries.take(np.array([number]))
        answers.append(
            [
                SearchHit(
                    rank=rank,
                    id=passage,
                    score=score,
                    scores=ranking.scores_of(passage, score),
                    explanation=None if query is None else explain(query, stored[passage], words.word),
                    **texts[passage],
                )
                for rank, (passage, score) in enumerate(ranking.hits, start=1)
            ]
        )
    return answers


def encoded_query(text: str, budget: BudgetUsed, encoded: Representations, number: int, name: NameWord) -> EncodedQuery:
    """Return query `number` of `encoded` as it is sent."""
    own = encoded.take(np.array([number]))
    slots = [
        EncodedSlot(words=words, vector=vector.tolist())
        for words, vector in zip(slot_words(own, name), own.vectors_MH.astype(np.float64), strict=True)
    ]
    return EncodedQuery(query=text, budget=budget, slots=slots, terms=terms(own, name))

"""Explains a passage's scores by matched slots and common terms.

Legend: K query slots, P passage slots, H hidden size, T terms in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from diffretriever.encoders.preparer import Preparer, join_title
from diffretriever.schemas.serve import Explanation, Reading, SlotMatch, TermMatch, Word
from diffretriever.vectors.representations import Representations

NameWord: TypeAlias = Callable[[int], str]
"""A vocabulary entry's text."""
ReadVectors: TypeAlias = Callable[[np.ndarray], list[Reading]]
"""Returns the predicted tokens of vectors [M, H], such as `Encoder.read`."""
Parts: TypeAlias = tuple[list[str], list[str]]
"""Parts of the query and the passage that slots pool from; empty if slots pool from the whole text."""

_NO_TOKEN = -1


def slot_words(text: Representations, name: NameWord) -> list[list[Word]]:
    """Return the top predicted token of each slot of one text, with its impact in the text."""
    weights = dict(zip(text.impact_ids.tolist(), text.impact_weights.tolist(), strict=True))
    return [
        [] if token == _NO_TOKEN else [Word(word=name(token), weight=weights.get(token))]
        for token in text.slot_tokens.tolist()
    ]


def terms(text: Representations, name: NameWord) -> list[Word]:
    """Return the terms of one text's sparse vector by descending weight."""
    order = np.argsort(-text.impact_weights, kind="stable")
    return [Word(word=name(int(text.impact_ids[term])), weight=float(text.impact_weights[term])) for term in order]


def parts_of_each(
    preparer: Preparer,
    query: Representations,
    passages: Representations,
    query_text: str,
    passage_texts: Iterable[Mapping[str, Any]],
) -> list[Parts]:
    """Return, for each passage, the parts of query and passage that slots pool from.

    `passage_texts` has the `title` and `text` of each passage.
    """
    query_parts = preparer.parts(query_text, "query", len(query.vectors_MH))
    encoded_slots = preparer.default_slots("passage")
    parts: list[Parts] = []
    for passage, slots in zip(passage_texts, np.diff(passages.offsets).tolist(), strict=True):
        joined = join_title(passage["title"], passage["text"], preparer.text)
        # The index does not store which slots pruning kept.
        passage_parts = preparer.parts(joined, "passage", slots) if slots == encoded_slots else []
        parts.append((query_parts, passage_parts))
    return parts


def explain_each(
    query: Representations,
    passages: Representations,
    name: NameWord,
    read: ReadVectors | None = None,
    parts: Sequence[Parts] | None = None,
) -> list[Explanation]:
    """Explain passages' scores for one query (paper Eqs. 2 and 3).

    Products are float64, so that their mean is the dense score up to fp32 rounding. `read` is called once, with the
    vectors of the query and of all passages.
    """
    readings = [] if read is None else read(np.concatenate([query.vectors_MH, passages.vectors_MH]))
    query_readings, passage_readings = readings[: len(query.vectors_MH)], readings[len(query.vectors_MH) :]
    query_words = slot_words(query, name)
    explanations = []
    for number, (start, end) in enumerate(pairwise(passages.offsets.tolist())):
        passage = passages.take(np.array([number]))
        passage_words = slot_words(passage, name)
        query_parts, passage_parts = ([], []) if parts is None else parts[number]
        explanations.append(
            Explanation(
                slots=_matches(query, passage, query_words, passage_words),
                passage_slots=passage_words,
                terms=_common_terms(query, passage, name),
                query_readings=query_readings,
                passage_readings=passage_readings[start:end],
                query_parts=query_parts,
                passage_parts=passage_parts,
            )
        )
    return explanations


def _matches(
    query: Representations, passage: Representations, query_words: list[list[Word]], passage_words: list[list[Word]]
) -> list[SlotMatch]:
    if not len(passage.vectors_MH):
        return []
    products_KP = query.vectors_MH.astype(np.float64) @ passage.vectors_MH.astype(np.float64).T
    matched_K = products_KP.argmax(axis=1)
    best_K = products_KP.max(axis=1)
    total = float(best_K.sum())
    return [
        SlotMatch(
            slot=slot,
            words=query_words[slot],
            passage_slot=int(matched_K[slot]),
            passage_words=passage_words[int(matched_K[slot])],
            product=float(best_K[slot]),
            share=float(best_K[slot]) / total if total else None,
        )
        for slot in range(len(best_K))
    ]


def _common_terms(query: Representations, passage: Representations, name: NameWord) -> list[TermMatch]:
    ids_T, in_query_T, in_passage_T = np.intersect1d(
        query.impact_ids, passage.impact_ids, assume_unique=True, return_indices=True
    )
    query_T = query.impact_weights[in_query_T].astype(np.float64)
    passage_T = passage.impact_weights[in_passage_T].astype(np.float64)
    products_T = query_T * passage_T
    total = products_T.sum()
    return [
        TermMatch(
            word=name(int(ids_T[term])),
            query_weight=float(query_T[term]),
            passage_weight=float(passage_T[term]),
            product=float(products_T[term]),
            share=float(products_T[term] / total),
        )
        for term in np.argsort(-products_T, kind="stable")
    ]

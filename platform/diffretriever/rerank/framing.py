"""A query and its passages as token ids: passage and instruction in the user's turn, the query in the assistant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diffretriever.backbones import Vocabulary
from diffretriever.collections import Passage
from diffretriever.encoders.preparer import join_title
from diffretriever.prompts import Prompt, frame
from schemas.rerank import LikelihoodReranker
from schemas.retriever_parts import TextConfig

PROMPT = Prompt(before='Passage: "', after='".\nWrite a search query that this passage answers.', assistant="")


@dataclass(frozen=True, slots=True)
class FramedQuery:
    """What the model sees for one query: context, query tokens, tail, in this order.

    Attributes:
        contexts: a passage each, int32 [C]: prompt, passage, prompt.
        query_ids: int32 [L]; empty for a query that the tokenizer makes nothing of.
        tail: int32, what closes the assistant's turn; may be empty.
    """

    contexts: list[np.ndarray]
    query_ids: np.ndarray
    tail: np.ndarray


class Framing:
    """Frames pairs for one vocabulary. Cuts query and passage to their limits, never the prompt."""

    def __init__(self, vocabulary: Vocabulary, config: LikelihoodReranker) -> None:
        tokenizer = vocabulary.tokenizer
        opening = tokenizer.cls_token or tokenizer.bos_token or ""
        # The two sides are tokenised apart from the passage, so that no subword crosses its borders.
        self._left, self._right = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in frame(PROMPT, tokenizer, opening)
        )
        end = vocabulary.turn_end_id
        self._tail = [] if end is None else [end]
        self._vocabulary = vocabulary
        self._config = config

    def __call__(self, query: str, passages: Sequence[Passage]) -> FramedQuery:
        """Frame one query with its passages.

        Raises:
            ValueError: prompt and query leave no room for a passage.
        """
        query_ids = self._vocabulary.tokenise([query], [self._config.max_query_tokens])[0]
        join = TextConfig(title_join=self._config.title_join)
        texts = [join_title(passage.title, passage.text, join) for passage in passages]
        rows = self._vocabulary.tokenise(texts, [self._room(len(query_ids))] * len(texts))
        return FramedQuery(
            contexts=[np.array([*self._left, *row, *self._right], np.int32) for row in rows],
            query_ids=np.array(query_ids, np.int32),
            tail=np.array(self._tail, np.int32),
        )

    def _room(self, query_tokens: int) -> int:
        framing = len(self._left) + len(self._right) + len(self._tail)
        room = min(self._config.max_passage_tokens, self._vocabulary.max_length - framing - query_tokens)
        if room < 1:
            raise ValueError(
                f"no room for a passage: the prompt takes {framing} tokens, the query {query_tokens}, the model has "
                f"{self._vocabulary.max_length}. Lower max_query_tokens."
            )
        return room

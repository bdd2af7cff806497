"""What preparing a text has in common for all methods with a retrieval prompt: frames, text limits, content words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from diffretriever.encoders.content_words import ContentWords
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.preparer import Preparer
from diffretriever.prompts import build_prompt, frame
from schemas.retriever import PromptedRetriever
from schemas.retriever_parts import Side

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary


class Following(NamedTuple):
    """The tokens that come after the prompt: room is kept for them."""

    tokens: int
    description: str
    """What they are, such as `4 slots and 3 tail tokens`: part of an error message."""
    remedy: str
    """What makes them fewer, such as `a smaller budget`."""


class PromptedPreparer(Preparer):
    """Frames a text with the retrieval prompt and finds its content ids.

    A method says what follows the prompt (`_following`) and how the parts become one sequence (`_place`). A frame
    is the pair (token ids left of the text, token ids right of it) of one side and one number of slots.
    """

    config: PromptedRetriever

    def __init__(self, vocabulary: Vocabulary, config: PromptedRetriever) -> None:
        super().__init__(vocabulary, config.text)
        self.config = config
        self._content_words = ContentWords(vocabulary.tokenizer, config.content_words)
        self._frames: dict[tuple[Side, int], tuple[list[int], list[int]]] = {}

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Prepare `texts`; only the text is ever truncated.

        Raises:
            ValueError: prompt, and what follows it, leave no room for a text.
        """
        limits = [self._text_limit(side, k) for k in slots]
        rows = self.vocabulary.tokenise(texts, limits)
        cut = [row[:limit] for row, limit in zip(rows, limits, strict=True)]
        return [self._place(text, row, side, k) for text, row, k in zip(texts, cut, slots, strict=True)]

    @abstractmethod
    def _following(self, slots: int) -> Following:
        """What follows the prompt of a text with `slots` slots."""

    @abstractmethod
    def _place(self, text: str, row: list[int], side: Side, slots: int) -> PreparedText:
        """Put together the sequence of `text`, whose token ids, cut to its limit, are `row`."""

    def _text_limit(self, side: Side, slots: int) -> int:
        """Most tokens of a text: what the config allows, or what the model has room for, if that is less."""
        framing = sum(len(part) for part in self._frame(side, slots))
        following = self._following(slots)
        limit = self._limit(side) - (framing if self.text.length_semantics == "total" else 0)
        room = self.vocabulary.max_length - framing - following.tokens
        if min(limit, room) < 1:
            raise ValueError(
                f"no room for the text: the prompt takes {framing} tokens, {following.description} follow, "
                f"the {side} limit is {self._limit(side)}, the model's {self.vocabulary.max_length}. "
                f"Raise the limit, or take {following.remedy} or a shorter prompt."
            )
        return min(limit, room)

    def _frame(self, side: Side, slots: int) -> tuple[list[int], list[int]]:
        """Return the token ids left and right of the text."""
        key = (side, slots)
        if key not in self._frames:
            self._frames[key] = self._build_frame(side, slots)
        return self._frames[key]

    def _build_frame(self, side: Side, slots: int) -> tuple[list[int], list[int]]:
        tokenizer = self.vocabulary.tokenizer
        opening = tokenizer.cls_token or tokenizer.bos_token or ""
        if self.config.prompt.variant == "bare":
            left, right = opening, ""
        else:
            left, right = frame(build_prompt(self.config.prompt, side, slots), tokenizer, opening)
        # The two sides are tokenised apart from the text, so that no subword crosses its borders.
        return self._ids(left), self._ids(right)

    def _ids(self, text: str) -> list[int]:
        return list(self.vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

"""The CPU half of an encoder: texts to `PreparedText` values, with no weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffretriever.encoders.prepared import PreparedText
from schemas.retriever import Bm25Retriever
from schemas.retriever_parts import Side, TextConfig

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary


class Preparer(ABC):
    """Turns texts into `PreparedText` values. Truncation cuts the text, never the prompt, slots or tail."""

    def __init__(self, vocabulary: Vocabulary, text: TextConfig) -> None:
        self.vocabulary = vocabulary
        self.text = text
        self.most_slots: int | None = None
        """Most slots that the adapter knows; None: any number."""

    @abstractmethod
    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Prepare `texts` of one side; text i gets `slots[i]` slots (ignored by encoders without slots)."""

    @abstractmethod
    def default_slots(self, side: Side) -> int:
        """The configured number of slots of a side."""

    def prepare_queries(self, texts: Sequence[str], budgets: Sequence[int] | None = None) -> list[PreparedText]:
        """Prepare queries; `budgets` gives each its own K_q, None the configured one for all."""
        slots = [self.default_slots("query")] * len(texts) if budgets is None else list(budgets)
        if len(slots) != len(texts):
            raise ValueError(f"{len(texts)} queries but {len(slots)} budgets: give one K_q a query")
        if budgets is not None and min(slots, default=1) < 1:
            raise ValueError("a query's budget must be at least 1")
        if budgets is not None and self.most_slots is not None and max(slots, default=1) > self.most_slots:
            raise ValueError(f"a query's budget must be at most {self.most_slots}, for which the adapter was trained")
        return self.prepare(texts, "query", slots)

    def prepare_passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[PreparedText]:
        """Prepare passages from their two fields, joined as the config says."""
        joined = [join_title(title, text, self.text) for title, text in zip(titles, texts, strict=True)]
        return self.prepare(joined, "passage", [self.default_slots("passage")] * len(joined))

    def query_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of queries as they are written: no prompt, no special tokens, cut at the limit."""
        return self.vocabulary.tokenise(texts, [self.text.max_query_tokens] * len(texts))

    def _limit(self, side: Side) -> int:
        return self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens


def join_title(title: str, text: str, config: TextConfig | Bm25Retriever) -> str:
    """Return the passage's one text; an empty title or text adds no separator."""
    if config.title_join == "none":
        return text
    separator = {"space": " ", "period-space": ". "}[config.title_join]
    return separator.join(part for part in (title, text) if part)

"""The CPU half of an encoder: texts to `PreparedText` values, ready for a forward pass, with no weights.

Legend: L tokens of a sequence, T content ids of a text, K vectors of a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from diffretriever.schemas.retriever import Bm25Retriever, Side, TextConfig

if TYPE_CHECKING:
    from diffretriever.backbones import Vocabulary

NO_IDS = np.zeros(0, np.int32)
PREPARED_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("slots", pa.int32()),
        ("content_ids", pa.list_(pa.int32())),
        ("variant_ids", pa.list_(pa.int32())),
        ("n_tokens", pa.int32()),
        ("prefix_tokens", pa.int32()),
        ("vector_positions", pa.list_(pa.int32())),
    ]
)
"""The columns of `PreparedText` values that travel as a table, one row a text."""


@dataclass(frozen=True, slots=True)
class PreparedText:
    """One text.

    Attributes:
        input_ids: int32 [L], everything the model sees.
        slots: K, the most vectors of a generated or clustered text, 0 where a text has one vector, or one a token.
        content_ids: int32 [T], vocabulary entries, ascending; see `ContentWords`.
        variant_ids: int32 [T], the same words' entries with a leading space; see `ContentWords`.
        n_tokens: tokens of the text; of a pooled text the special tokens count, of others the prompt does not, of a
            late-interaction text all that are attended to.
        prefix_tokens: tokens at the start that every text of this side shares, where the method can use that.
        vector_positions: int32 [K], where in `input_ids` the tokens are that have a vector, ascending; empty except
            for late interaction.
    """

    input_ids: np.ndarray
    slots: int
    content_ids: np.ndarray
    variant_ids: np.ndarray
    n_tokens: int
    prefix_tokens: int = 0
    vector_positions: np.ndarray = field(default_factory=lambda: NO_IDS)


def to_arrow(texts: Sequence[PreparedText]) -> pa.Table:
    """Return `PREPARED_SCHEMA`, one row a text."""
    columns = {name: [getattr(text, name) for text in texts] for name in PREPARED_SCHEMA.names}
    return pa.table(columns, schema=PREPARED_SCHEMA)


def from_arrow(table: pa.Table) -> list[PreparedText]:
    """Read back what `to_arrow` made; other columns are ignored."""
    columns = {name: _values(table.column(name).combine_chunks()) for name in PREPARED_SCHEMA.names}
    return [PreparedText(**dict(zip(columns, fields, strict=True))) for fields in zip(*columns.values(), strict=True)]


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_list(column.type):
        return [value.values.to_numpy(zero_copy_only=False) for value in column]
    return column.to_pylist()


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
        _refuse_text(texts)
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
        _refuse_text(titles)
        _refuse_text(texts)
        joined = [join_title(title, text, self.text) for title, text in zip(titles, texts, strict=True)]
        return self.prepare(joined, "passage", [self.default_slots("passage")] * len(joined))

    def parts(self, text: str, side: Side, slots: int) -> list[str]:
        """Return the part of a text that each of its K slots reads; nothing where slots read the whole text.

        Args:
            text: of a passage, title and text joined by `join_title`.
            side: query or passage.
            slots: K.
        """
        return []

    def query_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of queries as they are written: no prompt, no special tokens, cut at the limit."""
        return self.vocabulary.tokenise(texts, [self.text.max_query_tokens] * len(texts))

    def _limit(self, side: Side) -> int:
        return self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens


def _refuse_text(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        # It would be taken for a list of its characters.
        raise ValueError("this is a single text: give a list of texts")


def join_title(title: str, text: str, config: TextConfig | Bm25Retriever) -> str:
    """Return the passage's one text; an empty title or text adds no separator."""
    if config.title_join == "none":
        return text
    separator = {"space": " ", "period-space": ". "}[config.title_join]
    return separator.join(part for part in (title, text) if part)

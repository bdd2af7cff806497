"""Preparers turn texts into the inputs of a forward pass, on the CPU and without weights.

Prompted methods frame a text with the prompts of paper Table 1 and find its content words, the vocabulary entries of
its sparse representation (paper §3.3). Other methods add a prefix and special tokens.

Legend: L tokens of a sequence, T content ids of a text, K vectors of a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from diffretriever.encoders.words import content_words, warn_of_script
from diffretriever.schemas.language import ENGLISH
from diffretriever.schemas.retriever import (
    Bm25Retriever,
    ContentWordsConfig,
    PrefixedRetriever,
    PromptConfig,
    PromptedRetriever,
    Side,
    TextConfig,
)

if TYPE_CHECKING:
    from diffretriever.backbones.vocabulary import Vocabulary


SYSTEM = "You are an AI assistant that can understand human language."
# Stands for the text while a chat template is rendered.
_SENTINEL = "\ue000"
_CACHED_WORDS = 1_000_000
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
"""The columns of a table of `PreparedText` values."""


@dataclass(frozen=True, slots=True)
class PreparedText:
    """The model input of one text.

    Attributes:
        input_ids: int32 [L], the whole input sequence.
        slots: K, or the maximum number of vectors of a generated or clustered text; 0 for pooled and token vectors.
        content_ids: int32 [T], ids of content words, ascending; see `ContentWords`.
        variant_ids: int32 [T], ids of the same words with a leading space; see `ContentWords`.
        n_tokens: number of tokens of the text without its prompt; pooled methods include special tokens, late
            interaction includes all attended tokens.
        prefix_tokens: length of the prefix that all texts of this side share, if the method reuses it.
        vector_positions: int32 [K], positions in `input_ids` of the tokens that have a vector, ascending; empty except
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
    """Return the texts as a table of `PREPARED_SCHEMA`."""
    columns = {name: [getattr(text, name) for text in texts] for name in PREPARED_SCHEMA.names}
    return pa.table(columns, schema=PREPARED_SCHEMA)


def from_arrow(table: pa.Table) -> list[PreparedText]:
    """Return the texts of a table that `to_arrow` made, ignoring other columns."""
    columns = {name: _values(table.column(name).combine_chunks()) for name in PREPARED_SCHEMA.names}
    return [PreparedText(**dict(zip(columns, fields, strict=True))) for fields in zip(*columns.values(), strict=True)]


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_list(column.type):
        return [value.values.to_numpy(zero_copy_only=False) for value in column]
    return column.to_pylist()


class Preparer(ABC):
    """Turns texts into `PreparedText` values. Truncation never removes prompt, slots or tail."""

    def __init__(self, vocabulary: Vocabulary, text: TextConfig) -> None:
        self.vocabulary = vocabulary
        self.text = text
        self.max_slots: int | None = None
        """Maximum number of slots that the adapter supports; None: no limit."""
        self.notices: list[str] = []
        """Settings that differ from the adapter's training."""

    @abstractmethod
    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Prepare `texts` of one side, text i with `slots[i]` slots; methods without slots ignore `slots`."""

    def default_slots(self, side: Side) -> int:
        """Return the configured number of slots; 0 for methods without slots."""
        return 0

    def prepare_queries(self, texts: Sequence[str], budgets: Sequence[int] | None = None) -> list[PreparedText]:
        """Prepare queries; `budgets` sets the K_q of each. None: the configured K_q."""
        _check_is_list(texts)
        slots = [self.default_slots("query")] * len(texts) if budgets is None else list(budgets)
        if len(slots) != len(texts):
            raise ValueError(f"{len(texts)} queries but {len(slots)} budgets: pass one K_q per query")
        if budgets is not None and min(slots, default=1) < 1:
            raise ValueError("a query's budget must be at least 1")
        if budgets is not None and self.max_slots is not None and max(slots, default=1) > self.max_slots:
            raise ValueError(f"a query's budget must be at most {self.max_slots}, for which the adapter was trained")
        return self.prepare(texts, "query", slots)

    def prepare_passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[PreparedText]:
        """Prepare passages, title and text joined by `text.title_join`."""
        _check_is_list(titles)
        _check_is_list(texts)
        joined = [join_title(title, text, self.text) for title, text in zip(titles, texts, strict=True)]
        return self.prepare(joined, "passage", [self.default_slots("passage")] * len(joined))

    def parts(self, text: str, side: Side, slots: int) -> list[str]:
        """Return the part of a text, title included, that each slot pools from; [] if slots see the whole text."""
        return []

    def query_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of queries without prompt and special tokens, truncated at the limit."""
        return self.vocabulary.tokenise(texts, [self.text.max_query_tokens] * len(texts))

    def text_limit(self, side: Side, framing: int, following: int, model_limit: int) -> int:
        """Return the maximum number of tokens of a text, given the number of tokens around it.

        Args:
            side: the side, which has a limit in the config.
            framing: number of tokens of prompt, prefix and special tokens.
            following: number of tokens of slots, tail or generated tokens.
            model_limit: maximum length of the model.

        Raises:
            ValueError: No tokens are left for the text.
        """
        configured = self.text.max_query_tokens if side == "query" else self.text.max_passage_tokens
        counted = framing if self.text.length_semantics == "total" else 0
        limit = min(configured - counted, model_limit - framing - following)
        if limit < 1:
            raise ValueError(
                f"no tokens left for the text: prompt and special tokens take {framing} tokens, slots, tail or "
                f"generated tokens {following}; the {side} limit is {configured}, the model's {model_limit}: raise the "
                "limit, or use a smaller budget (max_tokens if generated) or a shorter prompt"
            )
        return limit


def _check_is_list(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        # A string is a sequence of its characters.
        raise ValueError("this is a single text: pass a list of texts")


def join_title(title: str, text: str, config: TextConfig | Bm25Retriever) -> str:
    """Join a passage's title and text; if one is empty, return the other."""
    if config.title_join == "none":
        return text
    separator = {"space": " ", "period-space": ". "}[config.title_join]
    return separator.join(part for part in (title, text) if part)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text before and after a passage or query, and the start of the assistant's answer."""

    before: str
    after: str
    assistant: str


def build_prompt(config: PromptConfig, side: Side, slots: int) -> Prompt:
    """Return the prompt of one side for K = `slots` (paper Table 1; `colon`: authors' code).

    Raises:
        ValueError: The variant is `bare`, which has no prompt.
    """
    if config.variant == "bare":
        raise ValueError("the bare variant has no prompt")
    variant = config.variant
    if variant == "paper":
        variant = "one" if slots == 1 else "few"
    amount = {"one": "one word", "few": "a few words", "three": "three words"}[variant]
    noun = "word is" if variant == "one" else "words are"
    ending = " and split them by space" if variant == "three" else ""
    after = f'". Use {amount} to represent the {side} in a retrieval task. Make sure your {noun} in lowercase{ending}.'
    assistant = f'The {noun}{":" if config.colon else ""} "'
    return Prompt(before=f'{side.capitalize()}: "', after=after, assistant=assistant)


def render_prompt(prompt: Prompt, tokenizer: Any, opening: str = "") -> tuple[str, str]:
    """Return the strings before and after a text, rendered with the tokenizer's chat template if it has one.

    Without a template, `opening` (such as `[CLS]`), system message, user message and answer start are one line each.
    """
    if not getattr(tokenizer, "chat_template", None):
        return f"{opening}{SYSTEM}\n{prompt.before}", f"{prompt.after}\n{prompt.assistant}"
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{prompt.before}{_SENTINEL}{prompt.after}"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    left, sentinel, right = rendered.partition(_SENTINEL)
    if not sentinel:
        raise ValueError("the tokenizer's chat template drops the user's message: check chat_template")
    return left, right + prompt.assistant


class Frame(NamedTuple):
    """The token ids around a text, for one side and number of slots."""

    left: list[int]
    right: list[int]
    after: list[int]
    """Slots and tail."""
    limit: int
    """Maximum number of tokens of the text."""


class PromptedPreparer(Preparer):
    """Frames a text with the retrieval prompt and finds its content ids."""

    config: PromptedRetriever
    shares_prefix: ClassVar[bool] = False
    """Whether `PreparedText.prefix_tokens` is set."""

    def __init__(self, vocabulary: Vocabulary, config: PromptedRetriever) -> None:
        super().__init__(vocabulary, config.text)
        self.config = config
        self._content_words = ContentWords(vocabulary.tokenizer, config.content_words, config.language)
        self._frames: dict[tuple[Side, int], Frame] = {}

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """See the base class."""
        frames = [self.frame(side, k) for k in slots]
        rows = self.vocabulary.tokenise(texts, [frame.limit for frame in frames])
        prepared = []
        for text, row, k, frame in zip(texts, rows, slots, frames, strict=True):
            text_ids = row[: frame.limit]
            # An empty text in a bare frame becomes a padding token, because every text has a vector.
            ids = [*frame.left, *text_ids, *frame.right, *frame.after] or [self.vocabulary.pad_token_id]
            # At least one token remains after the prefix.
            shared = min(len(frame.left), len(ids) - 1) if self.shares_prefix else 0
            words = self._content_words(text)
            if side == "query" and not len(words[0]):
                warn_of_script(text, self.config.language)
            prepared.append(PreparedText(np.array(ids, np.int32), k, *words, len(text_ids), shared))
        return prepared

    def following(self, slots: int) -> list[int]:
        """Return the token ids after the prompt of a text with `slots` slots."""
        return []

    def reserved(self, slots: int) -> int:
        """Return the number of positions to keep free after the sequence."""
        return 0

    def frame(self, side: Side, slots: int) -> Frame:
        """Return the cached frame of one side and number of slots. Raises ValueError if no text fits."""
        if cached := self._frames.get((side, slots)):
            return cached
        tokenizer = self.vocabulary.tokenizer
        prefix = tokenizer.cls_token or tokenizer.bos_token or ""
        suffix = ""
        if self.config.prompt.variant != "bare":
            prefix, suffix = render_prompt(build_prompt(self.config.prompt, side, slots), tokenizer, prefix)
        # Tokenised separately, so that no subword spans prompt and text.
        left, right = (list(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (prefix, suffix))
        after = self.following(slots)
        following = len(after) + self.reserved(slots)
        limit = self.text_limit(side, len(left) + len(right), following, self.vocabulary.max_length)
        self._frames[side, slots] = Frame(left, right, after, limit)
        return self._frames[side, slots]


class ContentWords:
    """Maps a text to the token ids of its content words: lower-cased words except stop words.

    By default, words of several tokens are left out, as in the paper.
    """

    def __init__(self, tokenizer: Any, config: ContentWordsConfig, language: str = ENGLISH) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._language = language
        self._cached_ids = lru_cache(_CACHED_WORDS)(self._look_up)

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return `ids`, ascending and distinct, and their `variants`, int32 [T] each.

        With `fold_space_variants`, `variants[i]` is the word with a leading space, and the larger of the two weights
        counts. Otherwise it equals `ids[i]`.
        """
        pairs: dict[int, int] = {}
        for word in content_words(text, self._language):
            for token, variant in self._cached_ids(word):
                # A word that is also a fragment of another keeps its variant, in either order.
                pairs[token] = variant if variant != token else pairs.get(token, token)
        ids = sorted(pairs)
        return np.array(ids, np.int32), np.array([pairs[token] for token in ids], np.int32)

    def _look_up(self, word: str) -> tuple[tuple[int, int], ...]:
        ids = self._encode(word)
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        spaced = self._encode(f" {word}") if self._config.fold_space_variants else []
        if len(spaced) == 1 and spaced[0] != unknown:
            return ((ids[0] if len(ids) == 1 and ids[0] != unknown else spaced[0], spaced[0]),)
        if not self._config.subwords and len(ids) != 1:
            return ()
        return tuple((i, i) for i in ids if i != unknown)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


class PrefixedPreparer(Preparer):
    """Tokenises prefix and text with the tokenizer's special tokens."""

    def __init__(self, vocabulary: Vocabulary, config: PrefixedRetriever) -> None:
        super().__init__(vocabulary, config.text)
        self.config = config
        self._end: list[int] = []
        if config.append_eos:
            if vocabulary.eos_token_id is None:
                raise ValueError("append_eos: this backbone has no end-of-sequence token")
            self._end = [vocabulary.eos_token_id]

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """See the base class. Raises ValueError if prefix and special tokens leave no tokens for a text."""
        prefix = self.config.query_prefix if side == "query" else self.config.passage_prefix
        # The space that ends a prefix becomes part of the text's first word.
        (framed,) = self.vocabulary.tokenise([prefix.rstrip()], [self.vocabulary.max_length], special=True)
        framing = len(framed) + len(self._end)
        limit = len(framed) + self.text_limit(side, framing, 0, self.vocabulary.max_length)
        rows = self.vocabulary.tokenise([prefix + text for text in texts], [limit] * len(texts), special=True)
        max_vectors, prepared = self.default_slots(side), []
        for row in rows:
            ids = row + self._end
            # An empty text without special tokens becomes a padding token, because every text has a vector.
            filled = np.array(ids or [self.vocabulary.pad_token_id], np.int32)
            prepared.append(PreparedText(filled, max_vectors, NO_IDS, NO_IDS, len(ids)))
        return prepared

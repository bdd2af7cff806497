"""Tokenising for published embedding models as sentence-transformers does it, without their weights.

The library's own tokenising needs the whole model. What it follows are a few fields of files beside the weights,
read here; when the model is loaded, a sample text is held against the library (see `library.LibraryEncoder`).

Legend: L tokens of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.library_vocabulary import LibraryVocabulary
from diffretriever.encoders.preparer import PreparedText, Preparer
from schemas.retriever import LibraryRetriever, Side

TASKS: dict[Side, str] = {"query": "query", "passage": "document"}
"""What the library calls the two sides."""
NO_IDS = np.zeros(0, np.int32)


class Prompt(NamedTuple):
    """What stands before a text, in characters and tokens."""

    text: str
    left: tuple[int, ...] | None
    """Token ids before the text, where the prompt has special tokens; None: prompt and text are one string."""
    right: tuple[int, ...]
    """Token ids after the text, where `left` is given."""
    tokens: int
    """What the library counts as the prompt: with the special token that starts a text."""
    framing: int
    """Tokens that are not the text's."""


class LibraryPreparer(Preparer):
    """Prompt and text in the tokenizer's own form, special tokens included.

    Attributes:
        prompts: of both sides.
        end: token ids appended to every text.
    """

    vocabulary: LibraryVocabulary

    def __init__(self, config: LibraryRetriever, files: LibraryFiles) -> None:
        super().__init__(LibraryVocabulary(files), config.text)
        reads = self.vocabulary.settings.get("modality_config", {"text": {}})
        if "text" not in reads or "message" in reads:
            raise ValueError(f"{files.transformer} is made for chats or pictures ({', '.join(reads)}): not supported")
        self.config = config
        self.end = self._ending()
        module_settings = [files.optional("config.json", module.folder) for module in files.modules]
        left_out = any(settings.get("include_prompt") is False for settings in module_settings)
        self._leaves_prompt_out = left_out or not config.pool_prompt
        own = files.library_config.get("prompts") or {}
        self.prompts: dict[Side, Prompt] = self.make_prompts({side: own.get(task) for side, task in TASKS.items()})

    def make_prompts(self, own: dict[Side, str | None]) -> dict[Side, Prompt]:
        """Return the prompt of each side: the config's, else the one in the model's files, which is `own`."""
        chosen: dict[Side, str | None] = {"query": self.config.query_prompt, "passage": self.config.passage_prompt}
        return {side: self._prompt(text if text is not None else own[side] or "") for side, text in chosen.items()}

    def default_slots(self, side: Side) -> int:
        """These models have no slots."""
        return 0

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise; `length_semantics: total` counts prompt and special tokens, `text` does not.

        Raises:
            ValueError: Prompt and special tokens leave no room for a text.
        """
        rows = self.token_rows(texts, side)
        left_out = self.prompts[side].tokens if self._leaves_prompt_out else 0
        # An empty text of a tokenizer without special tokens would leave nothing to pool: a pad then stands for it.
        nothing = [self.vocabulary.pad_token_id]
        filled = [np.array(row if len(row) > left_out else row + nothing, np.int32) for row in rows]
        return [PreparedText(ids, 0, NO_IDS, NO_IDS, len(row), left_out) for ids, row in zip(filled, rows, strict=True)]

    def token_rows(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Return the token ids [L] of each text, prompt and special tokens included."""
        prompt = self.prompts[side]
        limit = self._limit(side) + (prompt.framing if self.text.length_semantics == "text" else 0)
        limit = min(limit, self.longest(side))
        if limit <= prompt.framing:
            raise ValueError(
                f"no room for the text: prompt and special tokens take {prompt.framing} of {limit} tokens. "
                f"Raise the {side} limit."
            )
        if prompt.left is None:
            limits = [limit - len(self.end)] * len(texts)
            rows = self.vocabulary.tokenise([prompt.text + text for text in texts], limits, special=True)
            return [row + self.end for row in rows]
        room = [limit - len(prompt.left) - len(prompt.right)] * len(texts)
        return [[*prompt.left, *row, *prompt.right] for row in self.vocabulary.tokenise(texts, room)]

    def longest(self, side: Side) -> int:
        """Most tokens of a sequence that the model's files allow."""
        own: int | None = self.vocabulary.settings.get(f"{TASKS[side]}_length")
        return min(self.vocabulary.max_length, own or self.vocabulary.max_length)

    def _ending(self) -> list[int]:
        end = self.vocabulary.eos_token_id
        if not self.config.append_eos:
            return []
        if end is None:
            raise ValueError("append_eos: this model's tokenizer has no end-of-sequence token")
        (sample,) = self.vocabulary.tokenise(["a"], [self.vocabulary.max_length], special=True)
        return [] if sample[-1] == end else [end]

    def _prompt(self, text: str) -> Prompt:
        tokenizer = self.vocabulary.tokenizer
        whole = list(tokenizer(text, add_special_tokens=True)["input_ids"])
        ends_special = text and whole[-1] in tokenizer.all_special_ids
        tokens = len(whole) - bool(ends_special) if text else 0
        inner = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if inner == list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]):
            # The space that ends a prompt becomes part of the text's first word.
            framing = len(tokenizer(text.rstrip(" "), add_special_tokens=True)["input_ids"]) + len(self.end)
            return Prompt(text, None, (), tokens, framing)
        # Special tokens in a text are split into characters, so that these are set apart from it.
        start = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        after = start + len(inner)
        return Prompt(text, tuple(whole[:after]), (*whole[after:], *self.end), tokens, len(whole) + len(self.end))

"""A checkpoint's tokenizer and special tokens, loaded without weights and without remote code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from diffretriever.core.files import understood

# Truncation before tokenising, so that huge passages are not slow.
_CHARACTERS_PER_TOKEN = 64
_ALL = 1 << 30
"""Tokens: more than any text has."""


class Vocabulary:
    """The special tokens of a config, and the tokenizer, which is loaded on first use."""

    length_field: ClassVar[str] = "max_position_embeddings"
    """The config field with the maximum sequence length."""
    older_tokenizer: ClassVar[Any] = None
    """The transformers class that reads `older_files`; None: the architecture only has tokenizer.json."""
    older_files: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    """Tokenizer files of a checkpoint without tokenizer.json."""

    def __init__(self, folder: Path, config: dict[str, Any], turn_end: str) -> None:
        if config.get(self.length_field) is None:
            raise ValueError(f"{folder / 'config.json'}: field '{self.length_field}' is missing")
        self._folder = folder
        self._config = config
        self._turn_end = turn_end
        self.max_length: int = config[self.length_field]
        """Maximum sequence length in tokens."""

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer. Raises ValueError if its files are missing or damaged."""
        fix = "copy the checkpoint's tokenizer files there"
        with understood(self._folder, fix):
            is_older = not (self._folder / "tokenizer.json").is_file()
            if is_older and (missing := [name for name in self.older_files if not (self._folder / name).is_file()]):
                raise ValueError(f"{self._folder} has no {' and no '.join(missing)}: {fix}")
            kind = self.older_tokenizer if is_older else PreTrainedTokenizerFast
            return kind.from_pretrained(str(self._folder), local_files_only=True)

    def word(self, token: int) -> str:
        """Return a vocabulary entry as text."""
        return str(self.tokenizer.decode([token])).strip()

    def digest(self) -> str:
        """Return a digest of the tokenizer, 32 hex digits; config.json is part of the weights' digest."""
        backend = self.tokenizer.backend_tokenizer
        # Reset state that each call of the tokenizer sets.
        backend.no_truncation()
        backend.no_padding()
        state = {
            "backend": backend.to_str(),
            "chat_template": self.tokenizer.chat_template,
            "special_tokens": {name: str(token) for name, token in self.tokenizer.special_tokens_map.items()},
            "truncation_side": self.tokenizer.truncation_side,
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]

    def tokenise(self, texts: Sequence[str], limits: Sequence[int], *, special: bool = False) -> list[list[int]]:
        """Return the token ids of each text, truncated to the largest of `limits`.

        Each text is first truncated to a number of characters for its own limit. Special tokens in texts are read as
        plain text; `special` adds the tokenizer's own, within the limit.
        """
        if not texts:
            return []
        truncated = [text[: limit * _CHARACTERS_PER_TOKEN] for text, limit in zip(texts, limits, strict=True)]
        return list(self._encoded(truncated, max(limits), special=special)["input_ids"])

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of whole texts, without special tokens."""
        return [len(ids) for ids in self.tokenise(texts, [_ALL] * len(texts))]

    def spans(self, text: str, limit: int) -> list[tuple[int, int]]:
        """Return start and end, in characters, of each token of `tokenise([text], [limit])`."""
        encoded = self._encoded([text[: limit * _CHARACTERS_PER_TOKEN]], limit, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in encoded["offset_mapping"][0]]

    def _encoded(self, texts: Sequence[str], limit: int, *, special: bool = False, **options: bool) -> Any:
        return self.tokenizer(
            list(texts),
            add_special_tokens=special,
            # "<|im_end|>" or "[MASK]" in a passage is text, not a token.
            split_special_tokens=True,
            truncation=True,
            max_length=limit,
            **options,
        )

    @cached_property
    def quote_id(self) -> int | None:
        """Id of the token `"`; None if a quote takes several tokens."""
        quote = self.tokenizer('"', add_special_tokens=False)["input_ids"]
        return int(quote[0]) if len(quote) == 1 else None

    @cached_property
    def turn_end_id(self) -> int | None:
        """Id of the token that ends a turn; None if the tokenizer has none."""
        token_id: int | None = self.tokenizer.get_vocab().get(self._turn_end)
        return token_id

    def token_id(self, name: str) -> int | None:
        """Return the token id in a field of the config; the first one of a list, None if missing."""
        value: int | list[int] | None = self._config.get(name)
        return next(iter(value), None) if isinstance(value, list) else value

    @property
    def mask_token_id(self) -> int | None:
        """Id of the mask token, the input of slots; None for models without one."""
        return self.token_id("mask_token_id")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a sequence."""
        return self.token_id("eos_token_id")

    @property
    def pad_token_id(self) -> int:
        """Id of padding, which is never attended to."""
        pad = self.token_id("pad_token_id")
        return (self.eos_token_id if pad is None else pad) or 0


class EncoderVocabulary(Vocabulary):
    """Special tokens of BERT and ModernBERT, from the tokenizer because configs lack some of them."""

    names: ClassVar = {"mask_token_id": "mask_token_id", "eos_token_id": "sep_token_id"}
    """Config field of other architectures → attribute of the tokenizer: `[MASK]`, `[SEP]`."""

    def token_id(self, name: str) -> int | None:
        """See the base class; the tokenizer takes precedence over the config."""
        token: int | None = getattr(self.tokenizer, self.names[name]) if name in self.names else super().token_id(name)
        return token

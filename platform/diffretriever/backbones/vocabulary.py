"""A checkpoint's tokenizer and special tokens, for preparing texts without weights. Remote code is never run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from diffretriever.core.files import understood

# Texts are cut to this before they are tokenised: a passage of a megabyte costs no more than a long one.
_CHARACTERS_PER_TOKEN = 64


class Vocabulary:
    """The special tokens as the config names them, and the tokenizer, which is read on first use."""

    length_field: ClassVar[str] = "max_position_embeddings"
    """The config's name of the longest sequence that the backbone takes."""
    older_tokenizer: ClassVar[Any] = None
    """The transformers class that reads `older_files`; None: the family publishes tokenizer.json alone."""
    older_files: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    """Files of a checkpoint without tokenizer.json."""

    def __init__(self, folder: Path, config: dict[str, Any], turn_end: str) -> None:
        if config.get(self.length_field) is None:
            raise ValueError(f"{folder / 'config.json'}: field '{self.length_field}' is missing.")
        self._folder = folder
        self._config = config
        self._turn_end = turn_end
        self.max_length: int = config[self.length_field]
        """The longest sequence that the backbone takes, in tokens."""

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, read on first use; a ValueError where the folder has none, or a damaged one."""
        fix = "copy the checkpoint's tokenizer files there"
        with understood(self._folder, fix):
            is_older = not (self._folder / "tokenizer.json").is_file()
            if is_older and (missing := [name for name in self.older_files if not (self._folder / name).is_file()]):
                raise ValueError(f"{self._folder} has no {' and no '.join(missing)}: {fix}.")
            kind = self.older_tokenizer if is_older else PreTrainedTokenizerFast
            return kind.from_pretrained(str(self._folder), local_files_only=True)

    def word(self, token: int) -> str:
        """Return a vocabulary entry as text."""
        return str(self.tokenizer.decode([token])).strip()

    def digest(self) -> str:
        """Return 32 hex digits of all that token ids follow from; config.json is covered by the weights' digest."""
        backend = self.tokenizer.backend_tokenizer
        # Every call that tokenises sets both.
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
        """Return the token ids of each text, cut to fit.

        Args:
            texts: special tokens in them are read as plain text.
            limits: most tokens of each text. Its characters are cut accordingly, its ids to the largest limit.
            special: whether to add the tokenizer's special tokens, inside the limit.
        """
        if not texts:
            return []
        cut = [text[: limit * _CHARACTERS_PER_TOKEN] for text, limit in zip(texts, limits, strict=True)]
        return list(self._encoded(cut, max(limits), special=special)["input_ids"])

    def spans(self, text: str, limit: int) -> list[tuple[int, int]]:
        """Return where in `text` each token of `tokenise([text], [limit])` begins and ends, in characters."""
        encoded = self._encoded([text[: limit * _CHARACTERS_PER_TOKEN]], limit, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in encoded["offset_mapping"][0]]

    def _encoded(self, texts: Sequence[str], limit: int, *, special: bool = False, **options: bool) -> Any:
        return self.tokenizer(
            list(texts),
            add_special_tokens=special,
            # A passage that spells "<|im_end|>" or "[MASK]" means those characters, not the token.
            split_special_tokens=True,
            truncation=True,
            max_length=limit,
            **options,
        )

    @cached_property
    def quote_id(self) -> int | None:
        """Id of the token that is a double quote and nothing else; None where a quote takes several."""
        quote = self.tokenizer('"', add_special_tokens=False)["input_ids"]
        return int(quote[0]) if len(quote) == 1 else None

    @cached_property
    def turn_end_id(self) -> int | None:
        """Id of the token that ends a turn; None where the tokenizer has no such token."""
        token_id: int | None = self.tokenizer.get_vocab().get(self._turn_end)
        return token_id

    def token_id(self, name: str) -> int | None:
        """Return the id in a field of the config, which may have one, several or none: the first."""
        value: int | list[int] | None = self._config.get(name)
        return next(iter(value), None) if isinstance(value, list) else value

    @property
    def mask_token_id(self) -> int | None:
        """Id of the token a slot is filled with; None for families trained without one."""
        return self.token_id("mask_token_id")

    @property
    def eos_token_id(self) -> int | None:
        """Id that ends a sequence; the first where the config lists several."""
        return self.token_id("eos_token_id")

    @property
    def bos_token_id(self) -> int | None:
        """Id that starts a sequence, as the config says; chat templates write it themselves."""
        return self.token_id("bos_token_id")

    @property
    def pad_token_id(self) -> int:
        """Id to pad with; any would do, for pads are never attended."""
        pad = self.token_id("pad_token_id")
        return (self.eos_token_id if pad is None else pad) or 0


class EncoderVocabulary(Vocabulary):
    """The special tokens of BERT and its kin, which their configs do not name in full: the tokenizer does."""

    names: ClassVar = {"mask_token_id": "mask_token_id", "eos_token_id": "sep_token_id", "bos_token_id": "cls_token_id"}
    """A field of other families' configs → the tokenizer's attribute: `[MASK]`, `[SEP]`, `[CLS]`."""

    def token_id(self, name: str) -> int | None:
        """Return an id from the tokenizer, or else from the config."""
        token: int | None = getattr(self.tokenizer, self.names[name]) if name in self.names else super().token_id(name)
        return token

"""Tokenizers from a checkpoint's files alone. `auto_map`, which names remote code, is never followed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import BertTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from diffretriever.backbones.checkpoint import first_id


def load_tokenizer_json(folder: Path) -> Any:
    """Return the tokenizer of tokenizer.json; chat template and special tokens as the files beside it say.

    Raises:
        ValueError: The file is not there.
    """
    _require(folder, "tokenizer.json")
    return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)


def load_qwen2_tokenizer(folder: Path) -> Any:
    """Return Qwen2's tokenizer: tokenizer.json, or else vocab.json and merges.txt (as Dream publishes them).

    Raises:
        ValueError: Neither is there.
    """
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer_json(folder)
    _require(folder, "vocab.json", "merges.txt")
    return Qwen2Tokenizer.from_pretrained(str(folder), local_files_only=True)


def load_bert_tokenizer(folder: Path) -> Any:
    """Return BERT's tokenizer: tokenizer.json, or else vocab.txt.

    Raises:
        ValueError: Neither is there.
    """
    if not (folder / "tokenizer.json").is_file():
        _require(folder, "vocab.txt")
    return BertTokenizer.from_pretrained(str(folder), local_files_only=True)


def _require(folder: Path, *names: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} has no {' and no '.join(missing)}: copy the checkpoint's tokenizer files there.")


# Subwords are rarely longer than this; longer texts are cut before they are tokenised, so that a passage of a
# megabyte costs no more than one of the length that the model can see.
_CHARACTERS_PER_TOKEN = 64


class Vocabulary:
    """The special tokens as the config names them, the tokenizer on first use.

    Attributes:
        max_length: the longest sequence the backbone takes, in tokens.
    """

    def __init__(self, folder: Path, config: dict[str, Any], turn_end: str) -> None:
        self._folder = folder
        self._config = config
        self._turn_end = turn_end
        self.max_length: int = config.get("max_position_embeddings") or config["max_sequence_length"]

    def read_tokenizer(self, folder: Path) -> Any:
        """Return the tokenizer in tokenizer.json, without running code from the checkpoint."""
        return load_tokenizer_json(folder)

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, read on first use; a ValueError where the folder has none."""
        return self.read_tokenizer(self._folder)

    def tokenise(self, texts: Sequence[str], limits: Sequence[int], *, special: bool = False) -> list[list[int]]:
        """Token ids of each text, at most the largest of `limits`; characters are cut at each text's own.

        `special` adds the tokenizer's own special tokens, inside the limit. Spelled in a text they are only text.
        """
        if not texts:
            return []
        cut = [text[: limit * _CHARACTERS_PER_TOKEN] for text, limit in zip(texts, limits, strict=True)]
        encoded = self.tokenizer(
            cut,
            add_special_tokens=special,
            # A passage that spells "<|im_end|>" or "[MASK]" means those characters, not the token.
            split_special_tokens=True,
            truncation=True,
            max_length=max(limits),
        )
        return list(encoded["input_ids"])

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

    @property
    def mask_token_id(self) -> int | None:
        """Id of the token a slot is filled with; None for families trained without one."""
        return first_id(self._config.get("mask_token_id"))

    @property
    def eos_token_id(self) -> int | None:
        """Id that ends a sequence; the first where the config lists several."""
        return first_id(self._config.get("eos_token_id"))

    @property
    def bos_token_id(self) -> int | None:
        """Id that starts a sequence, as the config says; chat templates write it themselves."""
        return first_id(self._config.get("bos_token_id"))

    @property
    def pad_token_id(self) -> int:
        """Id to pad with; any would do, for pads are never attended."""
        pad = first_id(self._config.get("pad_token_id"))
        if pad is None:
            pad = self.eos_token_id
        return 0 if pad is None else pad

"""A checkpoint's tokenizer and special tokens: all that preparing a text needs, without any weights."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from diffretriever.backbones.config_fields import first_id
from diffretriever.backbones.tokenizer_files import load_tokenizer_json


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

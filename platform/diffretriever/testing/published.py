"""The format of a family's published checkpoints and adapters.

Descriptions share nothing with the backbones that read the files, so that a mistake on one side fails a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""A tensor's name in the checkpoint → its shape."""
TokenId: TypeAlias = Callable[[str], int | None]
"""A token → its id in the checkpoint's vocabulary; None for one that it lacks."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    positions: int

    @property
    def kv(self) -> int:
        """Width of the keys and of the values."""
        return self.hidden // self.heads * self.kv_heads


@dataclass(frozen=True)
class Published:
    """What a family's checkpoints and adapters have in common."""

    model_type: str
    """Of config.json."""
    config: Callable[[Sizes, TokenId], dict[str, Any]]
    """Fields of config.json, but for those of the library that wrote it."""
    shapes: Callable[[Sizes], Shapes]
    """The tensors, in the order in which random values are drawn for them."""
    positions: int
    """Most tokens of a sequence."""
    special_tokens: tuple[str, ...]
    tokenizer_config: dict[str, Any]
    """Fields of tokenizer_config.json, but for the special tokens' ids. With a `cls_token` and a `sep_token` the
    tokenizer puts these around a text."""
    adapter_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Last parts of the modules' names that public adapters change, as the checkpoint spells them."""
    tokenizer_files: tuple[str, ...] = ("tokenizer.json",)
    """vocab.txt is of word pieces, the others are of bytes merged."""
    grouped_heads: bool = False
    """Whether keys and values have fewer heads than queries."""

"""The formats of published checkpoints and adapters.

The code is independent of the backbones, so that a mistake on either side fails a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Tensor name in the checkpoint → shape."""
TokenId: TypeAlias = Callable[[str], int | None]
"""Token → id in the checkpoint's vocabulary, None if it is missing."""


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
        """Width of the keys and values of all heads."""
        return self.hidden // self.heads * self.kv_heads


@dataclass(frozen=True)
class Published:
    """The format of an architecture's checkpoints and adapters."""

    model_type: str
    """`model_type` of config.json."""
    config: Callable[[Sizes, TokenId], dict[str, Any]]
    """Fields of config.json, except those of the library that wrote it."""
    shapes: Callable[[Sizes], Shapes]
    """Shapes of the tensors, in the order of random generation."""
    positions: int
    """Maximum sequence length."""
    special_tokens: tuple[str, ...]
    tokenizer_config: dict[str, Any]
    """Fields of tokenizer_config.json without special token ids. If it has `cls_token` and `sep_token`, the tokenizer
    adds them around a text."""
    adapter_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Target modules of public adapters: the last part of their names in the checkpoint."""
    tokenizer_files: tuple[str, ...] = ("tokenizer.json",)
    """With vocab.txt, the vocabulary is WordPiece; otherwise byte-level BPE."""
    adds_bos: bool = False
    """Whether the tokenizer adds its `bos_token` before a text."""
    grouped_heads: bool = False
    """Whether keys and values have fewer heads than queries."""

"""Tokenizers from a checkpoint's files alone. `auto_map`, which names remote code, is never followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import BertTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer


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

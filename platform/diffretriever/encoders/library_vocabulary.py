"""The tokenizer of a published embedding model, with the settings that sentence-transformers' files add to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers.normalizers import Lowercase, Sequence
from transformers import AutoConfig, AutoTokenizer

from diffretriever.backbones import Vocabulary
from diffretriever.encoders.library_files import LibraryFiles

_NOT_OPTIONS = ("subfolder", "trust_remote_code")
"""What a model's files do not decide: where they are, and whether their code runs."""


class LibraryVocabulary(Vocabulary):
    """The tokenizer's length and case are those of the library.

    Attributes:
        settings: the library's settings of the transformer.
    """

    def __init__(self, files: LibraryFiles) -> None:
        self.settings = files.transformer_settings
        options = self._tokenizer_options()
        self._loaded = AutoTokenizer.from_pretrained(
            str(files.transformer), trust_remote_code=files.remote_code, **options
        )
        if self.settings.get("do_lower_case"):
            _lower_case(self._loaded)
        length = self._loaded.model_max_length
        if "model_max_length" not in options:
            config = AutoConfig.from_pretrained(str(files.transformer), trust_remote_code=files.remote_code)
            positions = getattr(config, "max_position_embeddings", -1)
            length = length if positions == -1 else min(length, positions)
        ids = {"pad_token_id": self._loaded.pad_token_id, "eos_token_id": self._loaded.eos_token_id}
        super().__init__(files.transformer, {**ids, "max_position_embeddings": length}, turn_end="")

    def read_tokenizer(self, folder: Path) -> Any:
        """Return the tokenizer, read already: its length was needed."""
        return self._loaded

    def _tokenizer_options(self) -> dict[str, Any]:
        options = self.settings.get("processor_kwargs") or self.settings.get("tokenizer_args") or {}
        if self.settings.get("max_seq_length") is not None:
            options = {"model_max_length": self.settings["max_seq_length"], **options}
        return {name: value for name, value in options.items() if name not in _NOT_OPTIONS}


def _lower_case(tokenizer: Any) -> None:
    present = tokenizer.backend_tokenizer.normalizer
    tokenizer.backend_tokenizer.normalizer = Sequence([Lowercase(), *([] if present is None else [present])])

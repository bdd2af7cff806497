"""What the folder of a late-interaction model (ColBERT and its kin) says about tokens and vectors.

A marker stands before the text, queries may be filled up with further tokens (query expansion), and punctuation of
passages may have no vector (the skip list). Three kinds of folders say how: sentence-transformers' own, PyLate's and
Stanford's; all are run by the library's `MultiVectorEncoder`.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.library_preparer import TASKS

STANFORD_MARKERS = {"query": "[unused0]", "document": "[unused1]"}
CLASSIC_QUERY_LENGTH = 32


@dataclass(frozen=True)
class Expansion:
    """Query expansion: queries are filled up with one token, whose states become vectors too."""

    length: int
    """Queries are filled up to this many tokens."""
    fixed: bool
    """Whether longer queries are cut to it."""
    attended: bool
    """Whether the other tokens attend to the filling ones."""
    token: str | None
    """None: the mask token, else the end-of-sequence token."""


@dataclass(frozen=True)
class TokenRules:
    """What a folder says about the tokens of a late-interaction model."""

    markers: dict[str, str]
    """Prompts by the library's name of the side (`query`, `document`) that must each be one token; else empty."""
    lengths: dict[str, int]
    """The longest sequence by the same name, where there is one of its own."""
    expansion: Expansion | None
    mask: Any
    """The library's `MultiVectorMask`, which knows the skip list."""

    @classmethod
    def read(cls, files: LibraryFiles) -> TokenRules:
        """Read the rules.

        Raises:
            ValueError: The folder holds no late-interaction model, or a kind that is not supported.
        """
        if files.is_stanford_colbert:
            return _stanford(files.optional("artifact.metadata"))
        if files.library_config.get("model_type") == "ColBERT":
            return _pylate(files.library_config)
        masks = [module for module in files.modules if module.type.endswith(".MultiVectorMask")]
        if not masks:
            raise ValueError(f"{files.folder} holds no late-interaction model: use vectors: single")
        if any("TokenPooling" in module.type for module in files.modules):
            raise ValueError(f"{files.folder} merges the vectors of several tokens, which is not supported")
        settings = files.transformer_settings
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

        mask = MultiVectorMask.load(str(files.folder), subfolder=masks[0].folder.relative_to(files.folder).as_posix())
        return cls({}, _lengths(settings), _expansion(settings.get("query_expansion")), mask)


def _stanford(metadata: dict[str, Any]) -> TokenRules:
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    names = {"query": metadata.get("query_token_id"), "document": metadata.get("doc_token_id")}
    length = metadata.get("query_maxlen") or CLASSIC_QUERY_LENGTH
    skipped = list(string.punctuation) if metadata.get("mask_punctuation", True) else []
    return TokenRules(
        {task: f"{name or STANFORD_MARKERS[task]} " for task, name in names.items()},
        {"document": metadata["doc_maxlen"]} if metadata.get("doc_maxlen") else {},
        Expansion(length, fixed=True, attended=bool(metadata.get("attend_to_mask_tokens")), token=None),
        MultiVectorMask(skiplist_words=skipped),
    )


def _pylate(settings: dict[str, Any]) -> TokenRules:
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    prefixes = {"query": settings.get("query_prefix"), "document": settings.get("document_prefix")}
    length = settings.get("query_length") or CLASSIC_QUERY_LENGTH
    attended = bool(settings.get("attend_to_expansion_tokens"))
    expansion = Expansion(length, fixed=True, attended=attended, token=None)
    skipped = settings.get("skiplist_words")
    return TokenRules(
        {task: prefix for task, prefix in prefixes.items() if prefix},
        _lengths(settings),
        None if settings.get("do_query_expansion") is False else expansion,
        MultiVectorMask(skiplist_words=list(string.punctuation) if skipped is None else skipped),
    )


def _lengths(settings: dict[str, Any]) -> dict[str, int]:
    return {task: settings[f"{task}_length"] for task in TASKS.values() if settings.get(f"{task}_length")}


def _expansion(settings: dict[str, Any] | None) -> Expansion | None:
    if settings is None:
        return None
    fixed = settings["strategy"] == "fixed"
    attended = bool(settings.get("attend", False))
    return Expansion(settings["length"], fixed=fixed, attended=attended, token=settings.get("token"))

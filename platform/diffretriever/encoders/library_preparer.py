"""Preparing texts for published embedding models as sentence-transformers does it, without their weights.

The library can prepare texts only where a whole model is loaded, and takes a special token that a passage spells for
the token itself. What it follows are a few fields of files beside the weights, read here; when the model is loaded, a
sample text is held against the library (see `library.LibraryEncoder`).

Legend: B texts of a batch, L tokens of a text, or the batch's padded length, K vectors of a text.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import normalizers
from transformers import AddedToken, AutoConfig, AutoTokenizer

from diffretriever.backbones import Vocabulary
from diffretriever.backbones.inputs import pad_right
from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.preparer import NO_IDS, PreparedText, Preparer
from diffretriever.files import understood
from diffretriever.schemas.retriever import LibraryRetriever, Side

TASKS: dict[Side, str] = {"query": "query", "passage": "document"}
"""What the library calls the two sides."""
_STANFORD_MARKERS = {"query": "[unused0]", "document": "[unused1]"}
_CLASSIC_QUERY_LENGTH = 32
_NOT_OPTIONS = ("subfolder", "trust_remote_code")
"""Options of the tokenizer that a model's files do not decide: where they are, and whether their code runs."""


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
        """Return the most tokens of a sequence that the model's files allow."""
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


class LibraryVocabulary(Vocabulary):
    """The tokenizer with the length and case that the library's files give it.

    Attributes:
        settings: the library's settings of the transformer.
    """

    def __init__(self, files: LibraryFiles) -> None:
        self.settings = files.transformer_settings
        options = self._tokenizer_options()
        trust = {"trust_remote_code": files.remote_code}
        with understood(files.transformer, "copy the model's tokenizer files there again"):
            self._loaded = AutoTokenizer.from_pretrained(str(files.transformer), **trust, **options)
        if self.settings.get("do_lower_case"):
            backend = self._loaded.backend_tokenizer
            own = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        length = self._loaded.model_max_length
        if "model_max_length" not in options:
            config = AutoConfig.from_pretrained(str(files.transformer), **trust)
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


class TokenPreparer(LibraryPreparer):
    """Late interaction (ColBERT and its kin): marker, text and expansion, and which tokens have a vector.

    In its `PreparedText` values `vector_positions` are the positions [K] in `input_ids` that have a vector, `slots` is
    K, and `n_tokens` counts the tokens that are attended to, which come first.

    Attributes:
        own_rules: as the folder has them.
        rules: the same with the config's length of queries.
    """

    def __init__(self, config: LibraryRetriever, files: LibraryFiles) -> None:
        self.own_rules = TokenRules.read(files)
        self.rules = self.own_rules.with_query_length(config.query_length)
        super().__init__(config, files)
        self.rules.mask.resolve_with_tokenizer(self.vocabulary.tokenizer)

    def make_prompts(self, own: dict[Side, str | None]) -> dict[Side, Prompt]:
        """Return the prompts of both sides; markers among them become special tokens of the tokenizer."""
        self._register(list(self.rules.markers.values()))
        markers = {side: self.rules.markers.get(task, "") for side, task in TASKS.items()}
        # A folder may have a prompt beside the marker: the marker comes first.
        return super().make_prompts(
            {side: marker + (own[side] or "").removeprefix(marker) for side, marker in markers.items()}
        )

    def longest(self, side: Side) -> int:
        """Return the most tokens before expansion."""
        expansion = self.rules.expansion
        length = self.rules.lengths.get(TASKS[side], self.vocabulary.max_length)
        if side == "query" and expansion is not None:
            length = expansion.length if expansion.fixed else max(length, expansion.length)
        return min(self.vocabulary.max_length, length)

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """Tokenise and expand, and choose the tokens that have a vector."""
        if not texts:
            return []
        rows = [np.array(row, np.int32) for row in self.token_rows(texts, side)]
        wholes = [self._expanded(row) if side == "query" else row for row in rows]
        ids_BL, real_BL = pad_right(wholes, 0)
        text_BL = (torch.arange(ids_BL.shape[1]) < torch.tensor([[len(row)] for row in rows])).long()
        attended_BL = real_BL if self.rules.expansion and self.rules.expansion.attended else text_BL
        features = {
            "input_ids": ids_BL,
            "attention_mask": attended_BL,
            "query_expansion_positions": real_BL > text_BL,
        }
        kept_BL = self.rules.mask(features, task=TASKS[side])["attention_mask"].bool().numpy()
        positions = [np.flatnonzero(kept_L).astype(np.int32) for kept_L in kept_BL]
        counts = attended_BL.sum(1).tolist()
        return [
            PreparedText(ids, len(own), NO_IDS, NO_IDS, n_tokens, vector_positions=own)
            for ids, own, n_tokens in zip(wholes, positions, counts, strict=True)
        ]

    def _expanded(self, row: np.ndarray) -> np.ndarray:
        expansion = self.rules.expansion
        if expansion is None or len(row) >= expansion.length:
            return row
        tokenizer = self.vocabulary.tokenizer
        token = expansion.token
        ids = [tokenizer.mask_token_id, tokenizer.eos_token_id] if token is None else [tokenizer.get_vocab().get(token)]
        filling = next((i for i in ids if i is not None), None)
        if filling is None:
            raise ValueError(f"the tokenizer has no token {token or 'to mask or to end with'} to fill queries with")
        return np.concatenate([row, np.full(expansion.length - len(row), filling, np.int32)])

    def _register(self, markers: list[str]) -> None:
        """Make markers that are entries of the vocabulary single tokens, as they were in training."""
        tokenizer = self.vocabulary.tokenizer
        known = tokenizer.get_vocab()
        forms = [next((form for form in (marker, *marker.split()[:1]) if form in known), None) for marker in markers]
        split = [form for form in forms if form is not None and tokenizer.tokenize(form) != [form]]
        if split:
            added = [AddedToken(form, normalized=False, special=True) for form in split]
            tokenizer.add_special_tokens({"additional_special_tokens": added})


@dataclass(frozen=True)
class Expansion:
    """Query expansion: queries are filled up with one token, whose states become vectors too."""

    length: int
    """Queries are filled up to this many tokens."""
    fixed: bool
    """Whether longer queries are cut to it."""
    attended: bool
    """Whether the other tokens attend to the filling ones."""
    token: str | None = None
    """None: the mask token, else the end-of-sequence token."""


@dataclass(frozen=True)
class TokenRules:
    """What a folder says about the tokens of a late-interaction model.

    A marker stands before the text, queries may be filled up with further tokens (query expansion), and punctuation
    of passages may have no vector (the skip list). Three kinds of folders say how: sentence-transformers' own,
    PyLate's and Stanford's; all are run by the library's `MultiVectorEncoder`.
    """

    markers: dict[str, str]
    """Prompts by the library's name of the side (`query`, `document`) that must each be one token; else empty."""
    lengths: dict[str, int]
    """The longest sequence by the same name, where there is one of its own."""
    expansion: Expansion | None
    mask: Any
    """The library's `MultiVectorMask`, which knows the skip list."""

    def with_query_length(self, length: int | None) -> TokenRules:
        """Return the rules with another length of queries; None leaves them as they are."""
        if length is None:
            return self
        expansion = None if self.expansion is None else replace(self.expansion, length=length)
        return replace(self, lengths={**self.lengths, TASKS["query"]: length}, expansion=expansion)

    @classmethod
    def read(cls, files: LibraryFiles) -> TokenRules:
        """Read the rules.

        Raises:
            ValueError: The folder holds no late-interaction model, or a kind that is not supported.
        """
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

        if files.is_stanford_colbert:
            return _stanford_rules(files.optional("artifact.metadata"), MultiVectorMask)
        if files.library_config.get("model_type") == "ColBERT":
            return _pylate_rules(files.library_config, MultiVectorMask)
        masks = [module for module in files.modules if module.type.endswith(".MultiVectorMask")]
        if not masks:
            raise ValueError(f"{files.folder} holds no late-interaction model: use vectors: single")
        if any("TokenPooling" in module.type for module in files.modules):
            raise ValueError(f"{files.folder} merges the vectors of several tokens, which is not supported")
        settings = files.transformer_settings
        mask = MultiVectorMask.load(str(files.folder), subfolder=masks[0].folder.relative_to(files.folder).as_posix())
        return cls({}, _lengths(settings), _expansion(settings.get("query_expansion")), mask)


def _stanford_rules(metadata: dict[str, Any], mask_class: Any) -> TokenRules:
    names = {"query": metadata.get("query_token_id"), "document": metadata.get("doc_token_id")}
    length = metadata.get("query_maxlen") or _CLASSIC_QUERY_LENGTH
    skipped = list(string.punctuation) if metadata.get("mask_punctuation", True) else []
    return TokenRules(
        {task: f"{name or _STANFORD_MARKERS[task]} " for task, name in names.items()},
        {"document": metadata["doc_maxlen"]} if metadata.get("doc_maxlen") else {},
        Expansion(length, fixed=True, attended=bool(metadata.get("attend_to_mask_tokens"))),
        mask_class(skiplist_words=skipped),
    )


def _pylate_rules(settings: dict[str, Any], mask_class: Any) -> TokenRules:
    prefixes = {"query": settings.get("query_prefix"), "document": settings.get("document_prefix")}
    length = settings.get("query_length") or _CLASSIC_QUERY_LENGTH
    expansion = Expansion(length, fixed=True, attended=bool(settings.get("attend_to_expansion_tokens")))
    skipped = settings.get("skiplist_words")
    return TokenRules(
        {task: prefix for task, prefix in prefixes.items() if prefix},
        _lengths(settings),
        None if settings.get("do_query_expansion") is False else expansion,
        mask_class(skiplist_words=list(string.punctuation) if skipped is None else skipped),
    )


def _lengths(settings: dict[str, Any]) -> dict[str, int]:
    return {task: settings[f"{task}_length"] for task in TASKS.values() if settings.get(f"{task}_length")}


def _expansion(settings: dict[str, Any] | None) -> Expansion | None:
    if settings is None:
        return None
    fixed = settings["strategy"] == "fixed"
    attended = bool(settings.get("attend", False))
    return Expansion(settings["length"], fixed=fixed, attended=attended, token=settings.get("token"))

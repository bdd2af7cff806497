"""Published embedding models through sentence-transformers: one vector per text, or one per token.

The library's first module tokenises texts, without weights; its other modules run on our batches.

Legend: B texts of a batch, L padded length, K vectors of a text, M vectors of the batch, H size of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoModel

from diffretriever.backbones.device import resolve_attention, resolve_device, resolve_dtype, to_device, to_host
from diffretriever.backbones.inputs import pad_right
from diffretriever.backbones.vocabulary import Vocabulary
from diffretriever.core.files import understood
from diffretriever.encoders.base import Encoder, ModelFacts
from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.preparer import NO_IDS, PreparedText, Preparer
from diffretriever.encoders.readout import unit_float16
from diffretriever.schemas.retriever import LibraryRetriever, Side
from diffretriever.vectors.representations import Representations

_TASKS: dict[Side, str] = {"query": "query", "passage": "document"}
"""The library's names of the two sides."""
_POOLING = {"mean": "mean", "cls": "cls", "last": "lasttoken"}


class LibraryPreparer(Preparer):
    """Tokenises texts as the library does.

    For late-interaction models, `PreparedText.slots` is the number of vectors, and attended tokens come first.
    """

    def __init__(self, config: LibraryRetriever, transformer: Any, prompts: dict[str, str], mask: Any = None) -> None:
        """Use the library's first module, the model's prompts and, for late interaction, its `MultiVectorMask`."""
        if set(transformer.modality_config) != {"text"}:
            modalities = ", ".join(map(str, transformer.modality_config))
            raise ValueError(f"{config.backbone.source} is made for chats or pictures ({modalities}): not supported")
        self._transformer, self._mask = transformer, mask
        tokenizer = transformer.tokenizer
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        vocabulary = Vocabulary(Path(), {**ids, "max_position_embeddings": tokenizer.model_max_length}, turn_end="")
        vocabulary.tokenizer = tokenizer
        super().__init__(vocabulary, config.text)
        if config.append_eos and tokenizer.eos_token_id is None:
            raise ValueError("append_eos: this model's tokenizer has no end-of-sequence token")
        self._appends_eos = config.append_eos
        query, passage = config.query_prompt, config.passage_prompt
        passage_prompts = (prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name))
        self.prompts: dict[Side, str] = {
            "query": query if query is not None else prompts.get("query") or "",
            "passage": passage if passage is not None else next(passage_prompts, ""),
        }
        self._limits: dict[Side, int] = {side: self._model_limit(side) for side in _TASKS}
        if mask is not None:
            self._set_query_length(config.query_length)

    def prepare(self, texts: Sequence[str], side: Side, slots: Sequence[int]) -> list[PreparedText]:
        """See the base class."""
        if not texts:
            return []
        return self._prepare_tokens(texts, side) if self._mask is not None else self._prepare_single(texts, side)

    def _prepare_single(self, texts: Sequence[str], side: Side) -> list[PreparedText]:
        eos = self.vocabulary.eos_token_id
        limit = self._limits[side] - self._appends_eos
        options = {"text": {"padding": False, "max_length": limit}, "common": {"return_tensors": None}}
        features = self._features(texts, side, options)
        prompt_tokens = features.get("prompt_length", 0)
        prepared = []
        for row in features["input_ids"]:
            if self._appends_eos and (not row or row[-1] != eos):
                row = [*row, eos]  # noqa: PLW2901
            # An empty text without special tokens becomes a padding token: pooling needs a token.
            ids = row if len(row) > prompt_tokens else [*row, self.vocabulary.pad_token_id]
            prepared.append(PreparedText(np.array(ids, np.int32), 0, NO_IDS, NO_IDS, len(row), prompt_tokens))
        return prepared

    def _prepare_tokens(self, texts: Sequence[str], side: Side) -> list[PreparedText]:
        features = self._features(texts, side, {"text": {"max_length": self._limits[side]}})
        attended_BL = features["attention_mask"].bool()
        real_BL = attended_BL | features.get("query_expansion_positions", attended_BL)
        ids_BL = features["input_ids"].to(torch.int32).numpy()
        kept_BL = self._mask(features, task=_TASKS[side])["attention_mask"].bool().numpy()
        prepared = []
        for row, length in enumerate(real_BL.sum(1).tolist()):
            positions = np.flatnonzero(kept_BL[row]).astype(np.int32)
            n_tokens = int(attended_BL[row].sum())
            ids = ids_BL[row, :length]
            prepared.append(PreparedText(ids, len(positions), NO_IDS, NO_IDS, n_tokens, vector_positions=positions))
        return prepared

    def _features(self, texts: Sequence[str], side: Side, options: dict[str, Any]) -> dict[str, Any]:
        features: dict[str, Any] = self._transformer.preprocess(
            list(texts), prompt=self.prompts[side] or None, task=_TASKS[side], processing_kwargs=options
        )
        return features

    def _model_limit(self, side: Side) -> int:
        # The space that ends a prompt becomes part of the text's first word.
        framing = len(self.vocabulary.tokenizer(self.prompts[side].rstrip(" "))["input_ids"]) + self._appends_eos
        side_limit = self._transformer.query_length if side == "query" else self._transformer.document_length
        model_limit = min(self.vocabulary.max_length, side_limit or self.vocabulary.max_length)
        return framing + self.text_limit(side, framing, 0, model_limit)

    def _set_query_length(self, length: int | None) -> None:
        # Late-interaction queries are truncated to this length, and padded to it by models with query expansion.
        if self.vocabulary.tokenizer.padding_side == "left":
            raise ValueError("this late-interaction model pads on the left: not supported")
        expansion = self._transformer.query_expansion
        if expansion is not None:
            length = min(length or expansion["length"], self._limits["query"])
            self._transformer.query_expansion = {**expansion, "length": length}
        elif length is not None:
            self._limits["query"] = min(length, self.vocabulary.max_length)


class LibraryEncoder(Encoder):
    """A model of sentence-transformers."""

    config: LibraryRetriever
    preparer: LibraryPreparer

    def __init__(self, config: LibraryRetriever, model: Any, preparer: LibraryPreparer, weights: str) -> None:
        """Wrap a model of the library; `weights` is the digest of its files."""
        facts = ModelFacts(
            device=model.device,
            dtype=str(model.dtype).removeprefix("torch."),
            hidden_size=model.get_embedding_dimension(),
            vocab_size=None,
            weights=weights,
        )
        super().__init__(config, preparer, facts)
        self.model = model

    @classmethod
    def load_preparer(cls, config: LibraryRetriever) -> LibraryPreparer:
        """Load the tokenizer and the library's config; late-interaction models, which are small, are loaded whole."""
        files = LibraryFiles.open(config, weights=config.vectors == "token")
        if config.vectors == "token":
            with understood(files.folder, "copy the model's files there again"):
                model = _load_model(config, files, torch.device("cpu"), torch.float32)
            # From here on only the tokenizer is needed.
            model[0].model.to("meta")
            return _token_preparer(config, model)
        prompts = files.optional("config_sentence_transformers.json").get("prompts") or {}
        return LibraryPreparer(config, _load_without_weights(config, files), prompts)

    @classmethod
    def load(cls, config: LibraryRetriever, device: str) -> Self:
        """Load the model and its preparer."""
        files = LibraryFiles.open(config, weights=True)
        target = resolve_device(device)
        model = _load_model(config, files, target, resolve_dtype(config.backbone.dtype, target))
        preparer = _token_preparer(config, model) if config.vectors == "token" else cls.load_preparer(config)
        if config.similarity == "auto":
            named = model.similarity_fn_name
            if named not in ("cosine", "dot"):
                raise ValueError(f"{files.folder} compares vectors by {named}: only cosine and dot are supported")
            normalises = any(module.type.endswith(".Normalize") for module in files.modules)
            config = config.model_copy(update={"similarity": "cosine" if normalises else named})
        return cls(config, model, preparer, files.digest(code=config.remote_code))

    def encode_batch(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, np.ndarray]:
        """Return the vectors of one batch, float16 [M, H], and the number of vectors of each text [B]."""
        vectors_MH, counts_B = self.vectors(texts)
        rounded_MH = unit_float16(vectors_MH) if self.config.similarity == "cosine" else vectors_MH.to(torch.float16)
        return to_host(rounded_MH), counts_B

    def represent(self, texts: Sequence[PreparedText], computed: tuple[torch.Tensor, np.ndarray]) -> Representations:
        """See the base class."""
        vectors_MH, counts_B = computed
        return Representations.of_vectors(vectors_MH.numpy(), counts_B, [text.n_tokens for text in texts])

    def vectors(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, np.ndarray]:
        """Return the library's unrounded vectors [M, H] and the number of vectors of each text [B]."""
        pads_left = self.preparer.vocabulary.tokenizer.padding_side == "left"
        rows = [text.input_ids[::-1] if pads_left else text.input_ids for text in texts]
        ids_BL, real_BL = pad_right(rows, self.preparer.vocabulary.pad_token_id)
        if pads_left:
            ids_BL, real_BL = ids_BL.flip(1), real_BL.flip(1)
        if self.config.vectors == "single":
            pooled_BH = self._run(texts, ids_BL, real_BL)["sentence_embedding"]
            return pooled_BH[:, : self.facts.hidden_size], np.ones(len(texts), np.int64)
        attended_BL = (torch.arange(ids_BL.shape[1]) < torch.tensor([[text.n_tokens] for text in texts])).long()
        states_BLH = self._run(texts, ids_BL, attended_BL)["token_embeddings"]
        counts = np.array([len(text.vector_positions) for text in texts])
        rows_M = torch.from_numpy(np.repeat(np.arange(len(texts)), counts))
        positions_M = torch.from_numpy(np.concatenate([text.vector_positions for text in texts])).long()
        return states_BLH[to_device(rows_M, states_BLH.device), to_device(positions_M, states_BLH.device)], counts

    def _run(self, texts: Sequence[PreparedText], ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> dict[str, Any]:
        device = self.facts.device
        features: dict[str, Any] = {
            "input_ids": to_device(ids_BL, device),
            "attention_mask": to_device(mask_BL, device),
        }
        (features["prompt_length"],) = {text.prefix_tokens for text in texts}
        with torch.inference_mode():
            return self.model(features)


def _trust(config: LibraryRetriever) -> dict[str, bool]:
    # The code may be in another repository, so files may have to be fetched.
    return {"trust_remote_code": config.remote_code, "local_files_only": not config.remote_code}


def _load_without_weights(config: LibraryRetriever, files: LibraryFiles) -> Any:
    from sentence_transformers.base.modules import Transformer

    class Tokenising(Transformer):
        def _load_model(self, name: str, task: str, config: Any, *_: Any, **options: Any) -> Any:
            with torch.device("meta"):
                return AutoModel.from_config(config, trust_remote_code=options["trust_remote_code"])

    subfolder = files.transformer.relative_to(files.folder).as_posix().removeprefix(".")
    with understood(files.transformer, "copy the model's tokenizer files there again"):
        return Tokenising.load(str(files.folder), subfolder=subfolder, **_trust(config))


def _load_model(config: LibraryRetriever, files: LibraryFiles, device: torch.device, dtype: torch.dtype) -> Any:
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    options: dict[str, Any] = {"dtype": dtype}
    if config.backbone.attention != "auto":
        options["attn_implementation"] = resolve_attention(config.backbone.attention, device, dtype, packs=False)
    model_class = MultiVectorEncoder if config.vectors == "token" else SentenceTransformer
    model = model_class(str(files.folder), device=str(device), model_kwargs=options, **_trust(config))
    pooling = "mean" if config.pooling == "auto" and config.bidirectional else config.pooling
    if not files.modules and pooling != "auto":
        model[1] = Pooling(model[0].get_embedding_dimension(), _POOLING[pooling])
    if not config.pool_prompt:
        if not any(isinstance(module, Pooling) for module in model):
            raise ValueError(f"{files.folder} has no pooling module: remove pool_prompt")
        model.set_pooling_include_prompt(include_prompt=False)
    if config.bidirectional:
        _lift_causal_mask(model.transformers_model, files)
    return model.eval()


def _token_preparer(config: LibraryRetriever, model: Any) -> LibraryPreparer:
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    mask = next(module for module in model if isinstance(module, MultiVectorMask))
    return LibraryPreparer(config, model[0], model.prompts, mask)


def _lift_causal_mask(network: Any, files: LibraryFiles) -> None:
    network.config.is_causal = False
    # Some architectures ignore the setting without an error, so test its effect.
    ids = torch.tensor([[0, 1, 2], [0, 1, 3]], device=network.device)
    with torch.inference_mode():
        first_H, other_H = network(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    if torch.equal(first_H, other_H):
        raise ValueError(f"{files.folder}: transformers always uses a causal mask here: remove bidirectional")

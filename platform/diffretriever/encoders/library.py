"""Published embedding models through sentence-transformers: one vector a text, or one a token.

The library's own modules run on our batches, so that pooling, projections and normalisation are exactly its own.

Legend: B texts of a batch, L padded length, M vectors of the batch, H size of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np
import torch

from diffretriever.backbones.device import moved, resolve_attention, resolve_device, resolve_dtype, to_host
from diffretriever.backbones.inputs import pad_right
from diffretriever.encoders.base import Encoder, ModelFacts
from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.library_preparer import TASKS, LibraryPreparer, TokenPreparer
from diffretriever.encoders.preparer import PreparedText
from diffretriever.encoders.readout import unit_float16
from diffretriever.representations import Representations
from diffretriever.schemas.retriever import LibraryRetriever, TextConfig

_SINGLE = "SentenceTransformer"
"""What the library calls a model of one vector a text."""
_SAMPLE = "A sample: it's 1 text, with punctuation (and a few words)!"
_NO_LIMIT = 1 << 30
_POOLING = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
_STATES = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


class LibraryEncoder(Encoder):
    """A model of sentence-transformers."""

    config: LibraryRetriever
    preparer: LibraryPreparer

    def __init__(self, config: LibraryRetriever, model: Any, preparer: LibraryPreparer, weights: str) -> None:
        """Run `model`, the library's; `weights` is the digest of its files."""
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
        """Read the tokenizer and the library's config files only."""
        files = LibraryFiles.open(config, weights=False)
        if config.vectors == "token":
            return TokenPreparer(config, files)
        kind = "ColBERT" if files.is_stanford_colbert else files.library_config.get("model_type", _SINGLE)
        if kind != _SINGLE:
            # The library would make another model of it, with the same weights.
            raise ValueError(
                f"{files.folder} is a {kind}, not a model of one vector a text: say vectors: token in a YAML file"
            )
        return LibraryPreparer(config, files)

    @classmethod
    def load(cls, config: LibraryRetriever, device: str) -> Self:
        """Load the model, and check that texts are prepared as the library would."""
        preparer = cls.load_preparer(config)
        files = LibraryFiles.open(config, weights=True)
        place = resolve_device(device)
        if config.similarity == "auto":
            config = config.model_copy(update={"similarity": _similarity_of(files)})
        model = _load_model(config, files, place, resolve_dtype(config.backbone.dtype, place))
        _check_preparation(model, preparer, files)
        return cls(config, model, preparer, files.digest())

    def encode_batch(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """Encode one batch by one forward pass through the library's modules.

        Returns:
            Vectors, float16 [M, H]; their largest component before rounding; counts of vectors [B].
        """
        vectors_MH, counts_B = self.vectors(texts)
        if self.config.similarity == "cosine":
            return to_host(unit_float16(vectors_MH)), torch.zeros(()), counts_B
        largest = to_host(vectors_MH.abs().max()) if len(vectors_MH) else torch.zeros(())
        return to_host(vectors_MH.to(torch.float16)), largest, counts_B

    def represent(
        self, texts: Sequence[PreparedText], computed: tuple[torch.Tensor, torch.Tensor, np.ndarray]
    ) -> Representations:
        """See the base class.

        Raises:
            ValueError: a component does not fit into float16.
        """
        vectors_MH, largest, counts_B = computed
        if not float(largest) <= torch.finfo(torch.float16).max:
            raise ValueError(
                f"a vector has the component {float(largest):g}, which float16, the form at rest, cannot hold: "
                "use similarity: cosine"
            )
        return Representations.of_vectors(vectors_MH.numpy(), counts_B, [text.n_tokens for text in texts])

    def vectors(self, texts: Sequence[PreparedText]) -> tuple[torch.Tensor, np.ndarray]:
        """Return the library's vectors [M, H] as they are, and the number [B] that each text has of them."""
        ids_BL, real_BL = pad_right([text.input_ids for text in texts], self.preparer.vocabulary.pad_token_id)
        if self.config.vectors == "single":
            pooled_BH = self._run(texts, ids_BL, real_BL)["sentence_embedding"]
            return pooled_BH[:, : self.facts.hidden_size], np.ones(len(texts), np.int64)
        attended_BL = (torch.arange(ids_BL.shape[1]) < torch.tensor([[text.n_tokens] for text in texts])).long()
        states_BLH = self._run(texts, ids_BL, attended_BL)["token_embeddings"]
        counts = np.array([len(text.vector_positions) for text in texts])
        rows_M = torch.from_numpy(np.repeat(np.arange(len(texts)), counts))
        places_M = torch.from_numpy(np.concatenate([text.vector_positions for text in texts])).long()
        return states_BLH[moved(rows_M, states_BLH.device), moved(places_M, states_BLH.device)], counts

    def _run(self, texts: Sequence[PreparedText], ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> dict[str, Any]:
        device = self.facts.device
        features: dict[str, Any] = {"input_ids": moved(ids_BL, device), "attention_mask": moved(mask_BL, device)}
        left_out = {text.prefix_tokens for text in texts}
        assert len(left_out) == 1, "queries and passages do not share a batch"
        if any(left_out):
            (features["prompt_length"],) = left_out
        with torch.inference_mode():
            return self.model(features)


def _load_model(config: LibraryRetriever, files: LibraryFiles, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the library's model of `files` in evaluation mode.

    Raises:
        ValueError: The model has parts that differ between queries and passages, no pooling to leave a prompt out of,
            or a causal mask that `bidirectional` does not lift; or the attention kernel cannot run here.
    """
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer
    from sentence_transformers.base.modules import Router

    options: dict[str, Any] = {"dtype": dtype}
    if config.backbone.attention != "auto":
        kernel = resolve_attention(config.backbone.attention, device, dtype, packs=False)
        options["attn_implementation"] = kernel
    # Code may lie in yet another repository.
    trust = {"trust_remote_code": files.remote_code, "local_files_only": not files.remote_code}
    common = {"device": str(device), **trust}
    if config.vectors == "token":
        model = MultiVectorEncoder(str(files.folder), model_kwargs=options, **common)
    elif files.modules:
        model = SentenceTransformer(str(files.folder), model_kwargs=options, **common)
    else:
        model = SentenceTransformer(modules=_plain_modules(config, files, options, trust), device=str(device))
    if any(isinstance(module, Router) for module in model):
        raise ValueError(f"{files.folder} runs queries and passages through different modules, which is not supported")
    if not config.pool_prompt:
        _leave_prompt_out(model, files)
    if config.bidirectional:
        _lift_causal_mask(model, files)
    return model.eval()


def _check_preparation(model: Any, preparer: LibraryPreparer, files: LibraryFiles) -> None:
    """Raise ValueError if the library prepares a sample text otherwise: it has settings that are not followed here."""
    unlimited = copy(preparer)
    unlimited.text = TextConfig(max_query_tokens=_NO_LIMIT, max_passage_tokens=_NO_LIMIT)
    if isinstance(unlimited, TokenPreparer):
        unlimited.rules = unlimited.own_rules
    for side, task in TASKS.items():
        (ours,) = unlimited.prepare([_SAMPLE], side, [0])
        ids = ours.input_ids.tolist()
        theirs = model.preprocess([_SAMPLE], prompt=preparer.prompts[side].text or None, task=task)
        expected = theirs["input_ids"][0].tolist()
        same = ids == [*expected, *preparer.end]
        if ours.prefix_tokens:
            same = same and ours.prefix_tokens == theirs["prompt_length"]
        if preparer.config.vectors == "token":
            attended = int(theirs["attention_mask"].sum())
            same = same and (ours.n_tokens, ours.vector_positions.tolist()) == (attended, _scored(model, theirs, task))
        if not same:
            raise ValueError(
                f"{files.folder}: sentence-transformers prepares a {task} in a way that is not supported here "
                f"(token ids {expected}, here {ids})"
            )


def _scored(model: Any, features: dict[str, Any], task: str) -> list[int]:
    """Positions of the tokens that the library would score."""
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    for module in model:
        if isinstance(module, MultiVectorMask):
            features = module(features, task=task)
    return features["attention_mask"][0].bool().nonzero().flatten().tolist()


def _plain_modules(
    config: LibraryRetriever, files: LibraryFiles, options: dict[str, Any], trust: dict[str, bool]
) -> list[Any]:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    transformer = Transformer(
        str(files.folder),
        model_kwargs={**options, **trust},
        processor_kwargs=dict(trust),
        config_kwargs=dict(trust),
        # Said here, as the library would put texts into the chat template of a checkpoint that has one.
        modality_config=_STATES,
        module_output_name="token_embeddings",
    )
    return [transformer, Pooling(transformer.get_embedding_dimension(), _pooling_of(config, files))]


def _pooling_of(config: LibraryRetriever, files: LibraryFiles) -> str:
    if config.pooling != "auto":
        return _POOLING[config.pooling]
    architectures = files.config.get("architectures") or [""]
    causal = architectures[0].endswith("ForCausalLM") and files.config.get("is_causal", True)
    return "lasttoken" if causal and not config.bidirectional else "mean"


def _similarity_of(files: LibraryFiles) -> str:
    """Return `dot` where the model's files say so and do not normalise, else `cosine`, the library's default.

    Raises:
        ValueError: they say another similarity.
    """
    named = files.library_config.get("similarity_fn_name") or "cosine"
    if named not in ("cosine", "dot"):
        raise ValueError(f"{files.folder} compares vectors by {named}: only cosine and dot are supported")
    normalises = any(module.type.endswith(".Normalize") for module in files.modules)
    return "dot" if named == "dot" and not normalises else "cosine"


def _leave_prompt_out(model: Any, files: LibraryFiles) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    if not any(isinstance(module, Pooling) for module in model):
        raise ValueError(f"{files.folder} has no pooling module to leave the prompt out of: leave pool_prompt out")
    model.set_pooling_include_prompt(include_prompt=False)


def _lift_causal_mask(model: Any, files: LibraryFiles) -> None:
    network = model.transformers_model
    network.config.is_causal = False
    # A family that ignores the setting would give plausible vectors, only worse ones: so it is tried.
    ids = torch.tensor([[0, 1, 2], [0, 1, 3]], device=network.device)
    with torch.inference_mode():
        first_H, other_H = network(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    if torch.equal(first_H, other_H):
        raise ValueError(f"{files.folder}: transformers runs this family with its causal mask: leave bidirectional out")

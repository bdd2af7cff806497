"""Loading a model of sentence-transformers, and holding our preparation of texts against the library's own."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch

from diffretriever.backbones.device import resolve_attention
from diffretriever.encoders.library_files import LibraryFiles
from diffretriever.encoders.library_preparer import TASKS, LibraryPreparer
from schemas.retriever import LibraryRetriever, TextConfig

SAMPLE = "A sample: it's 1 text, with punctuation (and a few words)!"
_NO_LIMIT = 1 << 30
_POOLING = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
_STATES = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


def load_model(config: LibraryRetriever, files: LibraryFiles, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the library's model of `files` in evaluation mode.

    Raises:
        ValueError: The model has parts that differ between queries and passages, no pooling to leave a prompt out of,
            or a causal mask that `bidirectional` does not lift; or the attention kernel cannot run here.
    """
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer
    from sentence_transformers.base.modules import Router

    options: dict[str, Any] = {"dtype": dtype}
    if config.backbone.attention != "auto":
        kernel = resolve_attention(config.backbone.attention, device, dtype, prefer_flash=False)
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


def check_tokens(model: Any, preparer: LibraryPreparer, files: LibraryFiles) -> None:
    """Prepare a sample text for both sides as we do and as the library does.

    Raises:
        ValueError: The two differ: the model has settings that the preparer does not follow.
    """
    unlimited = copy(preparer)
    unlimited.text = TextConfig(max_query_tokens=_NO_LIMIT, max_passage_tokens=_NO_LIMIT)
    for side, task in TASKS.items():
        (ours,) = unlimited.prepare([SAMPLE], side, [0])
        ids = ours.input_ids.tolist()
        theirs = model.preprocess([SAMPLE], prompt=preparer.prompts[side].text or None, task=task)
        expected = theirs["input_ids"][0].tolist()
        same = ids == [*expected, *preparer.end]
        if ours.prefix_tokens:
            same = same and ours.prefix_tokens == theirs["prompt_length"]
        if preparer.config.vectors == "token":
            attended = int(theirs["attention_mask"].sum())
            same = same and (ours.n_tokens, ours.content_ids.tolist()) == (attended, _scored(model, theirs, task))
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

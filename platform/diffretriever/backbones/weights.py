"""Loads a checkpoint's weights into a transformers module, and checks that no tensor is missing or left over."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.packed import KERNEL


def load_model(family: type[Backbone], checkpoint: Checkpoint, dtype: torch.dtype, attention: str) -> Any:
    """Load the model on the CPU in evaluation mode; `attention` is `packed` or `sdpa`.

    Raises:
        ValueError: A tensor is missing, unexpected or of another shape than in the config, or the output head should
            be tied to the embeddings but differs from them.
    """
    model_class, config = family.model_class(checkpoint), family.model_config(checkpoint)
    with torch.device("meta"):
        skeleton = model_class(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    names = family.checkpoint_names(shapes, checkpoint)
    tied = {names[name] for name in skeleton.all_tied_weights_keys}
    _check_tensors({names[name]: shape for name, shape in shapes.items()}, checkpoint, tied, family.ignored_tensors)
    # Silence transformers' own report of tensors; the check above is stricter.
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, report = model_class.from_pretrained(
            str(checkpoint.folder),
            config=config,
            key_mapping={f"^{re.escape(theirs)}$": ours for ours, theirs in names.items() if theirs != ours},
            dtype=dtype,
            attn_implementation=KERNEL if attention == "packed" else attention,
            generation_config=GenerationConfig(),
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
    assert not report["missing_keys"] | report["mismatched_keys"], "all tensors have been found"
    head = model.get_output_embeddings()
    is_separate = head is not None and head.weight is not model.get_input_embeddings().weight
    if is_separate and model.config.tie_word_embeddings:
        raise ValueError(
            f"{checkpoint.folder}: the head's weights differ from the embeddings, which this config ties them to: "
            "copy config.json and weights of the same model there"
        )
    return model


def _check_tensors(
    expected: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint, tied: Collection[str], ignored: str
) -> None:
    shapes = checkpoint.shapes
    if missing := [name for name in expected if name not in shapes and name not in tied]:
        raise ValueError(f"{checkpoint.folder}: {_counted(missing)} missing from the weights")
    if unexpected := [name for name in shapes if name not in expected and not re.search(ignored, name)]:
        raise ValueError(
            f"{checkpoint.folder}: {_counted(unexpected)} in the weights but not in a model of this config, "
            "which would compute something else"
        )
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            raise ValueError(
                f"{checkpoint.folder}: tensor '{name}' has shape {list(shapes[name])}, but the config {list(shape)}"
            )


def _counted(names: list[str]) -> str:
    return f"{len(names)} tensor(s) {', '.join(map(repr, names[:5]))}{' ...' if len(names) > 5 else ''}"

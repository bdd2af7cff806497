"""A backbone's weights: a transformers module filled with all tensors of a checkpoint, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from diffretriever.backbones.checkpoint import Checkpoint

SHOWN = 5
"""Most tensors that a message names."""


def load_model(
    model_class: Any,
    config: Any,
    checkpoint: Checkpoint,
    *,
    checkpoint_name: Callable[[str], str],
    ignored: str,
    dtype: torch.dtype,
    attention: str,
) -> Any:
    """Return `model_class(config)` on the CPU, in evaluation mode, with the checkpoint's weights.

    Args:
        model_class: a `PreTrainedModel` class.
        config: its config.
        checkpoint: where the weights are.
        checkpoint_name: the model's name of a tensor → the checkpoint's.
        ignored: pattern of tensors in the checkpoint that the model does not have.
        dtype: of the weights.
        attention: transformers' name of the attention kernel.

    Raises:
        ValueError: A tensor is missing, unexpected, of another shape than the config says, or was not loaded.
    """
    with torch.device("meta"):
        skeleton = model_class(config)
    shapes = {checkpoint_name(name): tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    tied = {checkpoint_name(name) for name in skeleton.all_tied_weights_keys}
    _check_tensors(shapes, checkpoint, tied, ignored)
    renamed = {checkpoint_name(name): name for name in skeleton.state_dict() if checkpoint_name(name) != name}
    with _quiet():
        model, report = model_class.from_pretrained(
            str(checkpoint.folder),
            config=config,
            key_mapping={f"^{re.escape(theirs)}$": ours for theirs, ours in renamed.items()},
            dtype=dtype,
            attn_implementation=attention,
            generation_config=GenerationConfig(),
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    problems = {name: report[name] for name in ("missing_keys", "mismatched_keys", "error_msgs") if report[name]}
    if problems:
        raise ValueError(
            f"{checkpoint.folder}: transformers did not load every tensor ({problems}): "
            "install it in the version of constraints.txt."
        )
    return model


def _check_tensors(
    expected: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint, tied: Collection[str], ignored: str
) -> None:
    found = checkpoint.shapes
    missing = [name for name in expected if name not in found and name not in tied]
    if missing:
        raise ValueError(f"{checkpoint.folder}: {_counted(missing)} missing from the weights.")
    unexpected = [name for name in found if name not in expected and not re.search(ignored, name)]
    if unexpected:
        raise ValueError(
            f"{checkpoint.folder}: {_counted(unexpected)} in the weights but not in a model of this config: "
            "the model would compute something else."
        )
    for name, shape in expected.items():
        if name in found and found[name] != shape:
            raise ValueError(
                f"{checkpoint.folder}: tensor '{name}' has shape {list(found[name])}, the config says {list(shape)}."
            )


def _counted(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} tensor(s) {shown}{more}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' own report on the tensors: ours is above, and stricter."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

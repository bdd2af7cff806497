"""A backbone's weights: a transformers module filled with a checkpoint's tensors, and weights in blocks.

A module gets all tensors of a checkpoint, and no others. In blocks are the linear maps inside a backbone's layers, as
oneDNN's products on a CPU read them: a plain matrix is put into blocks in every product, of a single query that takes a
third of its time. Here it is done once, by the operators that torch.compile takes for it. Results are the same bit for
bit. The blocks stand in the place of the plain weights, so memory does not grow; gradients no longer reach the layers.

Legend: I inputs and O outputs of a linear map.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.device import computes_bfloat16

SHOWN = 5
"""Most tensors that a message names."""
_OPERATORS = ("_reorder_linear_weight", "_linear_pointwise")


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
        model_class: A `PreTrainedModel` class.
        config: Its config.
        checkpoint: Where the weights are.
        checkpoint_name: The model's name of a tensor → the checkpoint's.
        ignored: Pattern of tensors in the checkpoint that this model has no use for.
        dtype: Precision the weights are held in.
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


def block_weights(model: PreTrainedModel) -> None:
    """Put weights in blocks in place where that was measured to gain: bfloat16 on an x86 processor that multiplies it.

    Args:
        model: a backbone's without its head, with its adapter, merged or beside the weights, whose own matrices stay as
            they are.
    """
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not _has_operators():
        return
    plain = [name for name, module in model.named_modules() if _is_plain(module)]
    # One after the other, so that memory never holds all weights twice.
    for name in plain:
        model.set_submodule(name, BlockedLinear(model.get_submodule(name)))


def _has_operators() -> bool:
    has_all = all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
    return has_all and platform.machine() in ("x86_64", "AMD64") and computes_bfloat16()


def _is_plain(module: nn.Module) -> bool:
    # LoRA's are float32.
    return type(module) is nn.Linear and module.weight.dtype == torch.bfloat16


class BlockedLinear(nn.Module):
    """A linear map, bfloat16, whose weights are held in blocks."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # No buffer: blocks cannot be copied or saved as other tensors.
        self.blocks_OI: Any = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)  # noqa: SLF001
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., O] of inputs [..., I], both bfloat16."""
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        outputs: Tensor = product(inputs, self.blocks_OI, self.bias, "none", [], "")
        return outputs

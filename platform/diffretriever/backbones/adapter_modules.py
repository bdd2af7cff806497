"""An adapter's tensors find their modules: by the model's own names or the family's original ones, in pairs.

The authors' adapters for LLaDA name modules as LLaDA's code does (reference §6.2, §7.2); adapters trained on a
backbone of this library name them as transformers does.

Shapes: R rank, I inputs and O outputs of the matrix that is adapted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from diffretriever.backbones.adapter_files import AdapterFiles


@dataclass(frozen=True)
class LowRank:
    """The change of one matrix: scale · B A."""

    a_RI: Tensor
    b_OR: Tensor
    alpha: float
    scale: float

    @property
    def rank(self) -> int:
        """R."""
        return self.a_RI.shape[0]


def module_names(model: Any, checkpoint_name: Callable[[str], str]) -> dict[str, str]:
    """Return every name an adapter may give a linear layer → the model's own name of it.

    These are the model's own, with or without the prefix of its layers (adapters trained on a model without an
    output head lack it), and that of the family's checkpoints.
    """
    names: dict[str, str] = {}
    for own, module in model.named_modules():
        if isinstance(module, nn.Linear):
            original = checkpoint_name(f"{own}.weight").removesuffix(".weight")
            names |= {own: own, original: own, own.removeprefix(f"{model.base_model_prefix}."): own}
    return names


def outside_of_layers(model: Any) -> frozenset[str]:
    """Return the names of the modules that only logits pass through: the output head and what leads to it."""
    inside = {id(module) for module in model.base_model.modules()}
    return frozenset(name for name, module in model.named_modules() if id(module) not in inside)


def match_modules(adapter: AdapterFiles, model: Any, names: dict[str, str]) -> dict[str, LowRank]:
    """Return the adapter's changes by the model's names of the modules.

    Raises:
        ValueError: Naming the tensor and the file: it has no module, no other half, another shape than the module
            or the config's rank ask for, comes twice or is not finite; or a targeted module has no tensors.
    """
    keys: dict[str, dict[str, str]] = {}
    for key in adapter.tensors:
        spelled, half = adapter.parse(key)
        if spelled not in names:
            raise ValueError(f"{adapter.file}: tensor '{key}' belongs to no linear layer of this backbone.")
        halves = keys.setdefault(names[spelled], {})
        if half in halves:
            raise ValueError(f"{adapter.file}: tensors '{halves[half]}' and '{key}' are for the same matrix.")
        halves[half] = key
    _check_complete(adapter, names, keys.keys() | outside_of_layers(model))
    return {own: _pair(adapter, halves, model.get_submodule(own)) for own, halves in keys.items()}


def _pair(adapter: AdapterFiles, keys: dict[str, str], module: nn.Linear) -> LowRank:
    for half, other in ("AB", "BA"):
        if half not in keys:
            raise ValueError(f"{adapter.file}: tensor '{keys[other]}' has no lora_{half} beside it.")
    spelled, _ = adapter.parse(keys["A"])
    rank = adapter.rank(spelled)
    for half, shape in (("A", (rank, module.in_features)), ("B", (module.out_features, rank))):
        tensor = adapter.tensors[keys[half]]
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{adapter.file}: tensor '{keys[half]}' has shape {list(tensor.shape)}; the backbone and the rank in "
                f"the adapter's config ask for {list(shape)}. Is it an adapter for this backbone?"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{adapter.file}: tensor '{keys[half]}' has values that are not finite.")
    a_RI, b_OR = (adapter.tensors[keys[half]] for half in "AB")
    return LowRank(a_RI, b_OR, adapter.alpha(spelled), adapter.scale(spelled))


def _check_complete(adapter: AdapterFiles, names: dict[str, str], adapted: set[str]) -> None:
    """Refuse an adapter for a smaller model of the same width. An output head may be left out."""
    targets = adapter.config.get("target_modules")
    if not isinstance(targets, list) or {"exclude_modules", "layers_to_transform"} & adapter.config.keys():
        return
    ends = tuple(f".{target}" for target in targets)
    for spelled, own in names.items():
        if own not in adapted and f".{spelled}".endswith(ends):
            raise ValueError(
                f"{adapter.file}: the adapter's config targets '{spelled}', but the file has no tensors for it. "
                "Is it an adapter for this backbone?"
            )

"""A LoRA adapter's folder in PEFT's format: its config, held against what is understood, and its tensors.

Legend: R rank, I inputs and O outputs of the matrix that is adapted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from diffretriever.backbones.checkpoint import ConfigFields, read_json

CONFIG_FILE = "adapter_config.json"
WEIGHT_FILE = "adapter_model.safetensors"

FIELDS = ConfigFields(
    required=frozenset({"lora_alpha", "peft_type", "r"}),
    optional=frozenset(
        {
            "alpha_pattern",
            "exclude_modules",
            "layers_to_transform",
            "lora_dropout",
            "rank_pattern",
            "target_modules",
            "use_rslora",
        }
    ),
    fixed={
        "peft_type": ("LORA",),
        "alora_invocation_tokens": (None,),
        "bias": ("none",),
        "ensure_weight_tying": (False,),
        "fan_in_fan_out": (False,),
        # Other starts change the weights that the adapter is added to.
        "init_lora_weights": (True, False, "gaussian"),
        "layer_replication": (None,),
        "lora_bias": (False,),
        "modules_to_save": (None,),
        "target_parameters": (None,),
        "trainable_token_indices": (None,),
        "use_dora": (False,),
        "use_qalora": (False,),
    },
    ignored=frozenset(
        {
            "auto_mapping",
            "base_model_name_or_path",
            "inference_mode",
            "layers_pattern",
            "megatron_config",
            "megatron_core",
            "peft_version",
            "qalora_group_size",
            "revision",
            "task_type",
        }
    ),
)
"""What is understood of adapter_config.json. A field that is null, false or empty is the same as absent."""

_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class AdapterFiles:
    """The config's fields that are set, and the tensors by their names in the file."""

    file: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def open(cls, folder: Path) -> AdapterFiles:
        """Read an adapter.

        Raises:
            ValueError: A file is missing or damaged, or a field of the config is unknown, missing or not supported.
        """
        file = folder / WEIGHT_FILE
        return cls(file, _read_config(folder), read_tensors(file))

    def parse(self, key: str) -> tuple[str, str]:
        """Split a tensor's name into its module and its half: `A` [R, I] or `B` [O, R]."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(
                f"{self.file}: tensor '{key}' is not part of a LoRA adapter on a linear layer: only "
                "'MODULE.lora_A.weight' and 'MODULE.lora_B.weight' are read."
            )
        return match["module"], match["half"]

    def rank(self, module: str) -> int:
        """Return the rank of a module, by its name in the file."""
        return int(self._patterned("rank_pattern", "r", module))

    def alpha(self, module: str) -> float:
        """Return the alpha of a module."""
        return float(self._patterned("alpha_pattern", "lora_alpha", module))

    def scale(self, module: str) -> float:
        """Return the factor of B A: alpha / r, or alpha / √r with `use_rslora`."""
        rank = self.rank(module)
        return self.alpha(module) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _patterned(self, patterns: str, default: str, module: str) -> Any:
        for pattern, value in self.config.get(patterns, {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        return self.config[default]


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG_FILE
    if not file.is_file():
        full = (folder / "config.json").is_file()
        found = "holds a full checkpoint, not an adapter: give it as the backbone" if full else "holds no adapter"
        raise ValueError(f"{folder} {found} ({CONFIG_FILE} is not there).")
    config = {name: value for name, value in read_json(file).items() if value}
    FIELDS.check(config, file)
    return config


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of an adapter; `ValueError` if it is missing, damaged or empty."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: of adapters only safetensors are read.")
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}): fetch it again.") from error
    if not tensors:
        raise ValueError(f"{file} holds no tensors: save the adapter again.")
    return tensors

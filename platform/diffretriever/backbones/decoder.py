"""Base class of Dream, LLaDA, Qwen2.5 and LLaMA 3: rotary decoders with a linear output head.

Published configs have the rotary base in `rope_theta`; transformers 5 writes it to `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint, pick

REQUIRED = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "rms_norm_eps",
        "vocab_size",
    }
)
OPTIONAL = frozenset(
    {"attention_dropout", "layer_types", "num_key_value_heads", "rope_parameters", "rope_theta", "tie_word_embeddings"}
)
"""Without `num_key_value_heads`, there is one for each head."""
FIXED: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "rope_scaling": (None,)}
COPIED = REQUIRED | {"attention_dropout", "head_dim", "num_key_value_heads", "tie_word_embeddings"}
"""Fields with the same name in Qwen2's and Llama's configs."""


class DecoderBackbone(Backbone):
    """A stack of rotary decoder layers, causal or not."""

    module: ClassVar[Any]
    """The transformers class."""
    ignored_tensors = r"rotary_emb\.inv_freq$"
    lora_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return the transformers class."""
        return cls.module

    @classmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return the transformers config with the checkpoint's rotary base and the causality of attention."""
        rope = {"rope_type": "default", "rope_theta": _rope_base(checkpoint.config, checkpoint.config_file)}
        return cls.decoder_config(checkpoint, rope_parameters=rope, is_causal=cls.is_causal)

    @classmethod
    def decoder_config(cls, checkpoint: Checkpoint, **computed: Any) -> Any:
        """Return the transformers config: the checkpoint's fields and the `computed` ones."""
        config, file = checkpoint.config, checkpoint.config_file
        if set(config.get("layer_types") or ["full_attention"]) != {"full_attention"}:
            raise ValueError(f"{file}: field 'layer_types' has values other than 'full_attention': not supported")
        shared = {"num_key_value_heads": config["num_attention_heads"], "tie_word_embeddings": False}
        return cls.module.config_class(**(shared | pick(config, COPIED)), **computed)

    @property
    def final_norm(self) -> nn.Module:
        """The norm after all layers."""
        norm: nn.Module = self.model.base_model.norm
        return norm


def _rope_base(config: Mapping[str, Any], file: Path) -> float:
    settings = config.get("rope_parameters") or {}
    if not settings.keys() <= {"rope_type", "rope_theta"} or settings.get("rope_type", "default") != "default":
        raise ValueError(f"{file}: field 'rope_parameters' is {settings!r}; only plain rotary embeddings are supported")
    bases = {float(base) for base in (config.get("rope_theta"), settings.get("rope_theta")) if base is not None}
    if len(bases) != 1:
        raise ValueError(f"{file}: one rotary base 'rope_theta' is needed, found {sorted(bases)}")
    return bases.pop()

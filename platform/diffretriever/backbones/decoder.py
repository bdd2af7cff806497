"""What Dream, LLaDA, Qwen2.5 and LLaMA 3 share: rotary decoders with a linear output head.

The rotary base is read from old and new spellings of config.json, and checked in the loaded model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.checkpoint import Checkpoint, pick

ROPE_FIELDS = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})
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
OPTIONAL = frozenset({"attention_dropout", "layer_types", "num_key_value_heads", "tie_word_embeddings"}) | ROPE_FIELDS
"""`num_key_value_heads` absent means one for each head."""
COPIED = REQUIRED | {"attention_dropout", "head_dim", "num_key_value_heads", "tie_word_embeddings"}
"""Fields that Qwen2's and Llama's configs spell alike."""


class DecoderBackbone(Backbone):
    """A stack of rotary decoder layers, causal or not, whose rotary base is held against the checkpoint's."""

    module: ClassVar[Any]
    """The transformers class that computes the family."""
    ignored_tensors = r"rotary_emb\.inv_freq$"
    lora_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return the transformers class."""
        return cls.module

    @classmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return the config with the checkpoint's rotary base and the family's direction of attention."""
        base = rope_base(checkpoint.config, checkpoint.config_file)
        return cls.decoder_config(checkpoint, rope_parameters=plain_rope(base), is_causal=cls.is_causal)

    @classmethod
    def decoder_config(cls, checkpoint: Checkpoint, **computed: Any) -> Any:
        """Return the transformers config: the checkpoint's fields and the `computed` ones.

        Raises:
            ValueError: A layer attends to less than the whole text.
        """
        config = checkpoint.config
        if set(config.get("layer_types") or ["full_attention"]) != {"full_attention"}:
            file = checkpoint.config_file
            raise ValueError(f"{file}: field 'layer_types' has other than 'full_attention'; only that is supported.")
        shared = {"num_key_value_heads": config["num_attention_heads"], "tie_word_embeddings": False}
        return cls.module.config_class(**(shared | pick(config, COPIED)), **computed)

    @classmethod
    def check_loaded(cls, model: Any, checkpoint: Checkpoint) -> None:
        """Check the rotary base, the direction of attention and the tying of the head.

        Raises:
            ValueError: The config ties the head to the embeddings but the weights hold another head, or the installed
                transformers has dropped a setting.
        """
        file = checkpoint.config_file
        check_rope_base(model.base_model.rotary_emb.inv_freq, rope_base(checkpoint.config, file), file)
        if model.config.is_causal is not cls.is_causal:
            raise ValueError(
                f"{file}: the loaded model has is_causal {model.config.is_causal}, family '{cls.family}' needs "
                f"{cls.is_causal}: install transformers in the version of constraints.txt."
            )
        is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        if is_tied != model.config.tie_word_embeddings:
            raise ValueError(
                f"{file}: the output head and the embeddings should be tied: "
                f"{model.config.tie_word_embeddings}; in the weights they are tied: {is_tied}."
            )

    @property
    def final_norm(self) -> nn.Module:
        """The norm after all layers."""
        norm: nn.Module = self.model.base_model.norm
        return norm


def rope_base(config: Mapping[str, Any], file: Path) -> float:
    """Return the base of plain rotary embeddings.

    Raises:
        ValueError: No base, two different ones, or any kind of scaling.
    """
    spellings: list[Mapping[str, Any]] = [{"rope_theta": config.get("rope_theta")}]
    for name in ("rope_scaling", "rope_parameters"):
        settings = config.get(name) or {}
        check_plain_rope(settings, name, file)
        spellings.append(settings)
    bases = {float(settings["rope_theta"]) for settings in spellings if settings.get("rope_theta") is not None}
    if len(bases) != 1:
        raise ValueError(f"{file}: exactly one rotary base 'rope_theta' is needed, found {sorted(bases)}.")
    return bases.pop()


def check_plain_rope(settings: Mapping[str, Any], field: str, file: Path) -> None:
    """Refuse rotary settings that say more than a base.

    Raises:
        ValueError: Any kind of scaling.
    """
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind != "default" or not settings.keys() <= {"rope_type", "type", "rope_theta"}:
        raise ValueError(f"{file}: field '{field}' is {settings!r}; only plain rotary embeddings are supported.")


def plain_rope(base: float) -> dict[str, Any]:
    """Return the setting in the spelling of transformers 5, where a bare `rope_theta` could be dropped."""
    return {"rope_type": "default", "rope_theta": base}


def check_rope_base(inv_freq: Tensor, base: float, file: Path) -> None:
    """Check that a loaded model rotates with the checkpoint's base.

    Raises:
        ValueError: It rotates otherwise.
    """
    size = 2 * len(inv_freq)
    expected = base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    if not torch.allclose(inv_freq.double().cpu(), expected, rtol=1e-5, atol=0):
        raise ValueError(
            f"{file}: the loaded model does not rotate with base {base}: "
            "install transformers in the version of constraints.txt."
        )

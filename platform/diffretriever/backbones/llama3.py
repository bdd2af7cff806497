"""LLaMA 3: a causal decoder, a baseline of PromptReps (LLaMA 3 model card)."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields, pick
from diffretriever.backbones.decoder import (
    OPTIONAL,
    REQUIRED,
    DecoderBackbone,
    shared_fields,
)


class Llama3Backbone(DecoderBackbone):
    """LLaMA 3 as it is. The scaled rotary embeddings of 3.1 and later are refused, not approximated."""

    family = "llama"
    is_causal = True
    turn_end = "<|eot_id|>"
    fields = ConfigFields(
        required=REQUIRED,
        optional=OPTIONAL | {"head_dim"},
        fixed={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        ignored=frozenset({"pretraining_tp"}),
    )

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return LlamaForCausalLM."""
        return LlamaForCausalLM

    @classmethod
    def decoder_config(cls, checkpoint: Checkpoint, **computed: Any) -> Any:
        """Return a LlamaConfig."""
        shared = shared_fields(checkpoint.config, checkpoint.config_file)
        return LlamaConfig(**shared, **pick(checkpoint.config, ["head_dim"]), **computed)

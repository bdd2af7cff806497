"""LLaMA 3: a causal decoder, a baseline of PromptReps (LLaMA 3 model card)."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields, pick
from diffretriever.backbones.decoder import (
    ASSISTANT_HEADER,
    HEADER_TURNS,
    LORA_TARGETS,
    OPTIONAL,
    REQUIRED,
    DecoderBackbone,
    published_config,
    published_shapes,
    shared_fields,
)
from diffretriever.backbones.published import Published, Shapes, Sizes, TokenId


def _config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return published_config(size) | {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": token_id("<|begin_of_text|>"),
        "eos_token_id": token_id("<|eot_id|>"),
        "model_type": "llama",
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 500000.0,
    }


def _shapes(size: Sizes) -> Shapes:
    return published_shapes(size, qkv_bias=False)


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
    published = Published(
        config=_config,
        shapes=_shapes,
        positions=8192,
        special_tokens=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        tokenizer_config={
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "chat_template": HEADER_TURNS + "{% if add_generation_prompt %}" + ASSISTANT_HEADER + "{% endif %}",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        adapter_targets=LORA_TARGETS,
        grouped_heads=True,
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

"""Dream 7B (model card): Qwen2's architecture and tensor names, every position seeing all others."""

from __future__ import annotations

from typing import Any

from diffretriever.backbones.checkpoint import ConfigFields
from diffretriever.backbones.decoder import LORA_TARGETS
from diffretriever.backbones.published import Published, Sizes, TokenId
from diffretriever.backbones.qwen2 import CHAT_TEMPLATE, Qwen2Backbone, qwen2_config, qwen2_shapes


def _config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return qwen2_config(size, token_id) | {
        "architectures": ["DreamModel"],
        "auto_map": {
            "AutoConfig": "configuration_dream.DreamConfig",
            "AutoModel": "modeling_dream.DreamModel",
        },
        "eos_token_id": token_id("<|endoftext|>"),
        "mask_token_id": token_id("<|mask|>"),
        "model_type": "Dream",
        "pad_token_id": token_id("<|endoftext|>"),
        "rope_scaling": None,
        "sliding_window": None,
    }


class DreamBackbone(Qwen2Backbone):
    """Qwen2 without the causal mask, and with a mask token. Its head still predicts the *next* token.

    The tokenizer of the public checkpoint is remote code over Qwen2's vocabulary; Qwen2's own reads it.
    """

    family = "Dream"
    is_causal = False
    fields = ConfigFields(
        required=Qwen2Backbone.fields.required | {"mask_token_id"},
        optional=Qwen2Backbone.fields.optional,
        fixed=Qwen2Backbone.fields.fixed,
        ignored=Qwen2Backbone.fields.ignored,
    )
    published = Published(
        config=_config,
        shapes=qwen2_shapes,
        positions=131072,
        special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"),
        tokenizer_config={
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "mask_token": "<|mask|>",
            "chat_template": CHAT_TEMPLATE,
            "tokenizer_class": "DreamTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        },
        tokenizer_files=("vocab.json", "merges.txt"),
        adapter_targets=LORA_TARGETS,
        adapter_task="FEATURE_EXTRACTION",
        grouped_heads=True,
    )

"""Qwen2.5: a causal decoder, the backbone of PromptReps and of the dense baselines (Qwen2.5 model card)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.decoder import (
    LORA_TARGETS,
    OPTIONAL,
    REQUIRED,
    DecoderBackbone,
    published_config,
    published_shapes,
    shared_fields,
)
from diffretriever.backbones.published import Published, Shapes, Sizes, TokenId
from diffretriever.backbones.vocabulary import Vocabulary, load_tokenizer_json, require_files

CHAT_TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    """Return config.json as published."""
    return published_config(size) | {
        "architectures": ["Qwen2ForCausalLM"],
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|im_end|>"),
        "max_window_layers": size.layers,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_sliding_window": False,
    }


def qwen2_shapes(size: Sizes) -> Shapes:
    """Return the tensors as published."""
    return published_shapes(size, qkv_bias=True)


class Qwen2Vocabulary(Vocabulary):
    """Qwen2's vocabulary, as one file or as two."""

    def read_tokenizer(self, folder: Path) -> Any:
        """Return the tokenizer in tokenizer.json, or else in vocab.json and merges.txt (as Dream publishes it).

        Raises:
            ValueError: Neither is there.
        """
        if (folder / "tokenizer.json").is_file():
            return load_tokenizer_json(folder)
        require_files(folder, "vocab.json", "merges.txt")
        return Qwen2Tokenizer.from_pretrained(str(folder), local_files_only=True)


class Qwen2Backbone(DecoderBackbone):
    """Qwen2.5 as it is."""

    family = "qwen2"
    is_causal = True
    turn_end = "<|im_end|>"
    vocabulary_class = Qwen2Vocabulary
    fields = ConfigFields(
        required=REQUIRED,
        optional=OPTIONAL,
        fixed={"hidden_act": ("silu",), "use_sliding_window": (False,), "use_mrope": (False,)},
        ignored=frozenset({"max_window_layers", "sliding_window"}),
    )
    published = Published(
        config=qwen2_config,
        shapes=qwen2_shapes,
        positions=32768,
        special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        tokenizer_config={
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
            "tokenizer_class": "Qwen2Tokenizer",
        },
        adapter_targets=LORA_TARGETS,
        grouped_heads=True,
    )

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return Qwen2ForCausalLM."""
        return Qwen2ForCausalLM

    @classmethod
    def decoder_config(cls, checkpoint: Checkpoint, **computed: Any) -> Any:
        """Return a Qwen2Config."""
        return Qwen2Config(**shared_fields(checkpoint.config, checkpoint.config_file), **computed)

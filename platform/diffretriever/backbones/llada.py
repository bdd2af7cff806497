"""LLaDA 8B and 1.5 (model cards): Llama's architecture with other tensor names, without the causal mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.decoder import DecoderBackbone
from diffretriever.backbones.vocabulary import Vocabulary

RENAMED = {
    "model.embed_tokens.": "model.transformer.wte.",
    "model.norm.": "model.transformer.ln_f.",
    "lm_head.": "model.transformer.ff_out.",
    "model.layers.": "model.transformer.blocks.",
    ".input_layernorm.": ".attn_norm.",
    ".post_attention_layernorm.": ".ff_norm.",
    ".self_attn.o_proj.": ".attn_out.",
    ".self_attn.": ".",
    ".mlp.gate_proj.": ".ff_proj.",
    ".mlp.up_proj.": ".up_proj.",
    ".mlp.down_proj.": ".ff_out.",
}
"""Parts of tensor names in Llama → in LLaDA, replaced in this order."""

FIXED: dict[str, tuple[Any, ...]] = {
    "activation_type": ("silu",),
    "alibi": (False,),
    "attention_dropout": (0.0,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "block_type": ("llama",),
    "embedding_dropout": (0.0,),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "input_emb_norm": (False,),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "multi_query_attention": (False, None),
    "residual_dropout": (0.0,),
    "rope": (True,),
    "scale_logits": (False,),
}
"""Values for which LLaDA's computation equals Llama's."""


class LladaVocabulary(Vocabulary):
    """LLaDA's vocabulary, with its config's name of the maximum length."""

    length_field = "max_sequence_length"


class LladaBackbone(DecoderBackbone):
    """Llama without the causal mask and with a mask token."""

    family = "llada"
    module = LlamaForCausalLM
    is_causal = False
    turn_end = "<|eot_id|>"
    vocabulary_class = LladaVocabulary
    fields = ConfigFields(
        required=frozenset(
            {
                "d_model",
                "mask_token_id",
                "max_sequence_length",
                "mlp_hidden_size",
                "n_heads",
                "n_layers",
                "rms_norm_eps",
                "rope_theta",
                "vocab_size",
            }
        ),
        optional=frozenset({"embedding_size", "n_kv_heads", "weight_tying"}),
        fixed=FIXED,
        ignored=frozenset(
            {
                "alibi_bias_max",
                "attention_layer_norm_with_affine",
                "flash_attention",
                "init_cutoff_factor",
                "init_device",
                "init_fn",
                "init_std",
                "mlp_ratio",
                "precision",
                "rope_full_precision",
            }
        ),
    )

    @classmethod
    def decoder_config(cls, checkpoint: Checkpoint, **computed: Any) -> Any:
        """Return a LlamaConfig with LLaDA's sizes."""
        config = checkpoint.config
        return LlamaConfig(
            vocab_size=config.get("embedding_size") or config["vocab_size"],
            hidden_size=config["d_model"],
            intermediate_size=config["mlp_hidden_size"],
            num_hidden_layers=config["n_layers"],
            num_attention_heads=config["n_heads"],
            num_key_value_heads=config.get("n_kv_heads") or config["n_heads"],
            max_position_embeddings=config["max_sequence_length"],
            rms_norm_eps=config["rms_norm_eps"],
            tie_word_embeddings=bool(config.get("weight_tying", False)),
            **computed,
        )

    @classmethod
    def checkpoint_names(cls, names: Iterable[str], checkpoint: Checkpoint) -> dict[str, str]:
        """Map Llama's names of tensors to LLaDA's."""
        mapped = {name: name for name in names}
        for ours, theirs in RENAMED.items():
            mapped = {name: new.replace(ours, theirs) for name, new in mapped.items()}
        return mapped

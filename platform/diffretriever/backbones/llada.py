"""LLaDA 8B and 1.5 (model cards): Llama's architecture under other names, without the causal mask."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.decoder import ASSISTANT_HEADER, HEADER_TURNS, DecoderBackbone
from diffretriever.backbones.published import Published, Shapes, Sizes, TokenId
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
"""Part of a tensor's name in Llama → in LLaDA, applied in this order. No tensor is permuted or transposed."""

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
"""What must hold for Llama to compute the same."""


def _config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return {
        "activation_type": "silu",
        "alibi": False,
        "alibi_bias_max": 8.0,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "auto_map": {
            "AutoConfig": "configuration_llada.LLaDAConfig",
            "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
            "AutoModel": "modeling_llada.LLaDAModelLM",
        },
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": size.hidden,
        "embedding_dropout": 0.0,
        "embedding_size": size.vocab,
        "eos_token_id": token_id("<|endoftext|>"),
        "flash_attention": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_cutoff_factor": None,
        "init_device": "meta",
        "init_fn": "mitchell",
        "init_std": 0.02,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": token_id("<|mdm_mask|>"),
        "max_sequence_length": size.positions,
        "mlp_hidden_size": size.intermediate,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": size.heads,
        "n_kv_heads": size.kv_heads,
        "n_layers": size.layers,
        "pad_token_id": token_id("<|endoftext|>"),
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 500000.0,
        "scale_logits": False,
        "use_cache": False,
        "vocab_size": size.vocab,
        "weight_tying": False,
    }


def _shapes(size: Sizes) -> Shapes:
    shapes: Shapes = {"model.transformer.wte.weight": (size.vocab, size.hidden)}
    for layer in range(size.layers):
        prefix = f"model.transformer.blocks.{layer}"
        shapes[f"{prefix}.attn_norm.weight"] = (size.hidden,)
        shapes[f"{prefix}.q_proj.weight"] = (size.hidden, size.hidden)
        shapes[f"{prefix}.k_proj.weight"] = (size.kv, size.hidden)
        shapes[f"{prefix}.v_proj.weight"] = (size.kv, size.hidden)
        shapes[f"{prefix}.attn_out.weight"] = (size.hidden, size.hidden)
        shapes[f"{prefix}.ff_norm.weight"] = (size.hidden,)
        shapes[f"{prefix}.ff_proj.weight"] = (size.intermediate, size.hidden)
        shapes[f"{prefix}.up_proj.weight"] = (size.intermediate, size.hidden)
        shapes[f"{prefix}.ff_out.weight"] = (size.hidden, size.intermediate)
    head = {"model.transformer.ff_out.weight": (size.vocab, size.hidden)}
    return shapes | {"model.transformer.ln_f.weight": (size.hidden,)} | head


class LladaVocabulary(Vocabulary):
    """LLaDA's vocabulary, whose config has a name of its own for the longest sequence."""

    length_field = "max_sequence_length"


class LladaBackbone(DecoderBackbone):
    """Llama without the causal mask, and with a mask token.

    Pads are never attended, while LLaDA's first published code attended to them: its results for a padded
    batch equal these only row by row, unpadded.
    """

    family = "llada"
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
    published = Published(
        config=_config,
        shapes=_shapes,
        positions=4096,
        special_tokens=(
            "<|startoftext|>",
            "<|endoftext|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|mdm_mask|>",
        ),
        tokenizer_config={
            "bos_token": "<|startoftext|>",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "chat_template": HEADER_TURNS + ASSISTANT_HEADER,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        # `ff_out` is the head's last part, too.
        adapter_targets=("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"),
    )

    @classmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return LlamaForCausalLM."""
        return LlamaForCausalLM

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
    def checkpoint_name(cls, name: str, checkpoint: Checkpoint) -> str:
        """Return LLaDA's name of a Llama tensor."""
        for ours, theirs in RENAMED.items():
            name = name.replace(ours, theirs)
        return name

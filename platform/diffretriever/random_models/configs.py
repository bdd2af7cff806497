"""config.json of each family with the fields its public checkpoints have (their model cards and configs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffretriever.random_models.tensors import Sizes

POSITIONS = {"dream": 131072, "qwen2": 32768, "llama3": 8192, "llada": 4096, "bert": 512}


TokenId = Callable[[str], int | None]


def published_config(family: str, size: Sizes, token_id: TokenId, dtype: str) -> dict[str, Any]:
    """Return the family's config.json for a model of these sizes."""
    written: dict[str, Callable[[Sizes, TokenId], dict[str, Any]]] = {
        "dream": _dream,
        "qwen2": _qwen2,
        "llama3": _llama3,
        "llada": _llada,
        "bert": _bert,
    }
    return written[family](size, token_id) | {"torch_dtype": dtype, "transformers_version": "4.46.2"}


def _decoder(size: Sizes) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate,
        "max_position_embeddings": size.positions,
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.kv_heads,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": size.vocab,
    }


def _qwen2(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return _decoder(size) | {
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


def _dream(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return _qwen2(size, token_id) | {
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


def _llama3(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return _decoder(size) | {
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


def _llada(size: Sizes, token_id: TokenId) -> dict[str, Any]:
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


def _bert(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return {
        "architectures": ["BertForPreTraining"],
        "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": size.hidden,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": size.positions,
        "model_type": "bert",
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "pad_token_id": token_id("[PAD]"),
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": size.vocab,
    }

"""The formats in which Dream, LLaDA, Qwen2.5 and LLaMA 3 are published (model cards)."""

from __future__ import annotations

from functools import partial
from typing import Any

from diffretriever.testing.published import Published, Shapes, Sizes, TokenId

_HEADER_TURNS = (
    "{{ bos_token }}{% for turn in messages %}<|start_header_id|>{{ turn['role'] }}<|end_header_id|>\n\n"
    "{{ turn['content'] | trim }}<|eot_id|>{% endfor %}"
)
# An expression, because templates drop a final newline of text.
_ASSISTANT_HEADER = "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
"""Parts of the chat templates of LLaMA 3 and LLaDA."""
_CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _shared_config(size: Sizes) -> dict[str, Any]:
    # Dream, Qwen2.5 and LLaMA 3.
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


def _shared_shapes(size: Sizes, *, qkv_bias: bool) -> Shapes:
    # Dream and Qwen2.5 have biases on q, k and v, LLaMA 3 has none.
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocab, size.hidden)}
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", size.hidden), ("k", size.kv), ("v", size.kv)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (rows, size.hidden)
            if qkv_bias:
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (size.hidden, size.hidden)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (size.intermediate, size.hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (size.intermediate, size.hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (size.hidden, size.intermediate)
        shapes[f"{prefix}.input_layernorm.weight"] = (size.hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (size.hidden,)
    return shapes | {"model.norm.weight": (size.hidden,), "lm_head.weight": (size.vocab, size.hidden)}


def _qwen2_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return _shared_config(size) | {
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


QWEN2 = Published(
    model_type="qwen2",
    config=_qwen2_config,
    shapes=partial(_shared_shapes, qkv_bias=True),
    positions=32768,
    special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    tokenizer_config={
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _CHATML,
        "tokenizer_class": "Qwen2Tokenizer",
    },
    grouped_heads=True,
)


def _dream_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return _qwen2_config(size, token_id) | {
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


DREAM = Published(
    model_type="Dream",
    config=_dream_config,
    shapes=partial(_shared_shapes, qkv_bias=True),
    positions=131072,
    special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"),
    tokenizer_config={
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": _CHATML,
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    },
    tokenizer_files=("vocab.json", "merges.txt"),
    grouped_heads=True,
)


def _llama3_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return _shared_config(size) | {
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


LLAMA3 = Published(
    model_type="llama",
    config=_llama3_config,
    shapes=partial(_shared_shapes, qkv_bias=False),
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
        "chat_template": _HEADER_TURNS + "{% if add_generation_prompt %}" + _ASSISTANT_HEADER + "{% endif %}",
        "tokenizer_class": "PreTrainedTokenizerFast",
    },
    adds_bos=True,
    grouped_heads=True,
)


def _llada_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
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


def _llada_shapes(size: Sizes) -> Shapes:
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


LLADA = Published(
    model_type="llada",
    config=_llada_config,
    shapes=_llada_shapes,
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
        "chat_template": _HEADER_TURNS + _ASSISTANT_HEADER,
        "tokenizer_class": "PreTrainedTokenizerFast",
    },
    # `ff_out` is also the name of the head.
    adapter_targets=("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"),
)

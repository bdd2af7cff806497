"""The formats in which BERT and ModernBERT are published (model cards)."""

from __future__ import annotations

from typing import Any

from diffretriever.testing.published import Published, Shapes, Sizes, TokenId


def _with_bias(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _bert_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
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


def _bert_shapes(size: Sizes) -> Shapes:
    # The pre-trained model, with pooler, masked-language and next-sentence heads.
    shapes: Shapes = {
        "bert.embeddings.word_embeddings.weight": (size.vocab, size.hidden),
        "bert.embeddings.position_embeddings.weight": (size.positions, size.hidden),
        "bert.embeddings.token_type_embeddings.weight": (2, size.hidden),
        **_with_bias("bert.embeddings.LayerNorm", size.hidden),
    }
    for layer in range(size.layers):
        prefix = f"bert.encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _with_bias(f"{prefix}.attention.self.{name}", size.hidden, size.hidden)
        shapes |= _with_bias(f"{prefix}.attention.output.dense", size.hidden, size.hidden)
        shapes |= _with_bias(f"{prefix}.attention.output.LayerNorm", size.hidden)
        shapes |= _with_bias(f"{prefix}.intermediate.dense", size.intermediate, size.hidden)
        shapes |= _with_bias(f"{prefix}.output.dense", size.hidden, size.intermediate)
        shapes |= _with_bias(f"{prefix}.output.LayerNorm", size.hidden)
    shapes |= _with_bias("bert.pooler.dense", size.hidden, size.hidden)
    shapes |= {"cls.predictions.bias": (size.vocab,)}
    shapes |= _with_bias("cls.predictions.transform.dense", size.hidden, size.hidden)
    shapes |= _with_bias("cls.predictions.transform.LayerNorm", size.hidden)
    return shapes | _with_bias("cls.seq_relationship", 2, size.hidden)


BERT = Published(
    model_type="bert",
    config=_bert_config,
    shapes=_bert_shapes,
    positions=512,
    special_tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    tokenizer_config={
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "tokenizer_class": "BertTokenizer",
    },
    tokenizer_files=("tokenizer.json", "vocab.txt"),
    adapter_targets=("query", "key", "value"),
)


def _modernbert_config(size: Sizes, token_id: TokenId) -> dict[str, Any]:
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": token_id("[CLS]"),
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": token_id("[CLS]"),
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "eos_token_id": token_id("[SEP]"),
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu",
        "hidden_size": size.hidden,
        "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate,
        "layer_norm_eps": 1e-05,
        # 16 instead of the published 128, so that short texts exceed it.
        "local_attention": 16,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": size.positions,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "pad_token_id": token_id("[PAD]"),
        "position_embedding_type": "absolute",
        "sep_token_id": token_id("[SEP]"),
        "tie_word_embeddings": True,
        "vocab_size": size.vocab,
    }


def _modernbert_shapes(size: Sizes) -> Shapes:
    norm = (size.hidden,)
    shapes: Shapes = {
        "model.embeddings.tok_embeddings.weight": (size.vocab, size.hidden),
        "model.embeddings.norm.weight": norm,
    }
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}"
        if layer > 0:
            shapes[f"{prefix}.attn_norm.weight"] = norm
        shapes[f"{prefix}.attn.Wqkv.weight"] = (3 * size.hidden, size.hidden)
        shapes[f"{prefix}.attn.Wo.weight"] = (size.hidden, size.hidden)
        shapes[f"{prefix}.mlp_norm.weight"] = norm
        shapes[f"{prefix}.mlp.Wi.weight"] = (2 * size.intermediate, size.hidden)
        shapes[f"{prefix}.mlp.Wo.weight"] = (size.hidden, size.intermediate)
    shapes |= {"model.final_norm.weight": norm, "head.dense.weight": (size.hidden, size.hidden)}
    return shapes | {"head.norm.weight": norm, "decoder.bias": (size.vocab,)}


MODERNBERT = Published(
    model_type="modernbert",
    config=_modernbert_config,
    shapes=_modernbert_shapes,
    positions=8192,
    special_tokens=("<|padding|>", "<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    tokenizer_config={
        "clean_up_tokenization_spaces": True,
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 8192,
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "[UNK]",
    },
    adapter_targets=("Wqkv", "Wo", "Wi"),
)

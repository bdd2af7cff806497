"""Names and shapes of the tensors each family publishes, and random values for them.

Written from the checkpoints' side, on its own: it shares nothing with the code that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    positions: int

    @property
    def kv(self) -> int:
        """Width of the keys and of the values."""
        return self.hidden // self.heads * self.kv_heads


def decoder_shapes(size: Sizes, *, qkv_bias: bool) -> Shapes:
    """Return the tensors of Dream and Qwen2 (with biases on q, k, v) and of LLaMA 3 (without)."""
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


def llada_shapes(size: Sizes) -> Shapes:
    """Return the tensors of LLaDA."""
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


def bert_shapes(size: Sizes) -> Shapes:
    """Return the tensors of BERT as pre-trained: with pooler, masked-language and next-sentence heads."""
    shapes: Shapes = {
        "bert.embeddings.word_embeddings.weight": (size.vocab, size.hidden),
        "bert.embeddings.position_embeddings.weight": (size.positions, size.hidden),
        "bert.embeddings.token_type_embeddings.weight": (2, size.hidden),
        **_layer_norm("bert.embeddings.LayerNorm", size.hidden),
    }
    for layer in range(size.layers):
        prefix = f"bert.encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _linear(f"{prefix}.attention.self.{name}", size.hidden, size.hidden)
        shapes |= _linear(f"{prefix}.attention.output.dense", size.hidden, size.hidden)
        shapes |= _layer_norm(f"{prefix}.attention.output.LayerNorm", size.hidden)
        shapes |= _linear(f"{prefix}.intermediate.dense", size.intermediate, size.hidden)
        shapes |= _linear(f"{prefix}.output.dense", size.hidden, size.intermediate)
        shapes |= _layer_norm(f"{prefix}.output.LayerNorm", size.hidden)
    shapes |= _linear("bert.pooler.dense", size.hidden, size.hidden)
    shapes |= {"cls.predictions.bias": (size.vocab,)}
    shapes |= _linear("cls.predictions.transform.dense", size.hidden, size.hidden)
    shapes |= _layer_norm("cls.predictions.transform.LayerNorm", size.hidden)
    return shapes | _linear("cls.seq_relationship", 2, size.hidden)


def random_tensors(shapes: Shapes, dtype: torch.dtype, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor for each shape, one at a time.

    Norms lie around one; matrices keep the size of what they are given, so that attention is far from
    uniform and a wrong position, mask or rotary base shows.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        is_matrix = len(shape) == 2
        scaled = values / shape[1] ** 0.5 if is_matrix else values * 0.1 + _is_norm_weight(name)
        yield name, scaled.to(dtype)


def _is_norm_weight(name: str) -> bool:
    return ("norm" in name.lower() and name.endswith(".weight")) or name.endswith("ln_f.weight")


def _linear(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _layer_norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

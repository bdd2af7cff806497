"""Dream and LLaDA computed plainly, one unpadded text at a time, from the tensors as they were published.

Written from the architecture's description and sharing no code with the library.
Shapes: L length, H hidden, D head dimension, N heads, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own custom)


class Names(NamedTuple):
    """Where a family keeps its tensors."""

    embeddings: str
    layer: str
    attention_norm: str
    attention: str
    attention_out: str
    feed_forward_norm: str
    gate: str
    up: str
    down: str
    final_norm: str
    head: str


DREAM = Names(
    "model.embed_tokens",
    "model.layers",
    "input_layernorm",
    "self_attn.",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "model.norm",
    "lm_head",
)
LLADA = Names(
    "model.transformer.wte",
    "model.transformer.blocks",
    "attn_norm",
    "",
    "attn_out",
    "ff_norm",
    "ff_proj",
    "up_proj",
    "ff_out",
    "model.transformer.ln_f",
    "model.transformer.ff_out",
)


class Plain(NamedTuple):
    """A bidirectional decoder: RMSNorm, half-split rotary, grouped heads, SwiGLU."""

    tensors: dict[str, Tensor]
    names: Names
    layers: int
    heads: int
    epsilon: float
    theta: float

    def run(self, ids_L: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [L, H] after the final norm, and logits [L, V]."""
        states_LH = self.tensors[self.names.embeddings + ".weight"][ids_L]
        for layer in range(self.layers):
            prefix = f"{self.names.layer}.{layer}."
            normed_LH = self._norm(states_LH, prefix + self.names.attention_norm)
            states_LH = states_LH + self._attend(normed_LH, prefix)
            normed_LH = self._norm(states_LH, prefix + self.names.feed_forward_norm)
            gate = F.silu(self._linear(normed_LH, prefix + self.names.gate))
            widened = gate * self._linear(normed_LH, prefix + self.names.up)
            states_LH = states_LH + self._linear(widened, prefix + self.names.down)
        hidden_LH = self._norm(states_LH, self.names.final_norm)
        return hidden_LH, self._linear(hidden_LH, self.names.head)

    def _attend(self, states_LH: Tensor, prefix: str) -> Tensor:
        length, width = states_LH.shape
        size = width // self.heads
        query, key, value = (
            self._linear(states_LH, f"{prefix}{self.names.attention}{part}_proj").view(length, -1, size).transpose(0, 1)
            for part in "qkv"
        )
        group = self.heads // len(key)
        query_NLD, key_NLD = self._rotate(query), self._rotate(key).repeat_interleave(group, 0)
        weights_NLL = (query_NLD @ key_NLD.transpose(1, 2) / size**0.5).softmax(-1)
        mixed_NLD = weights_NLL @ value.repeat_interleave(group, 0)
        return self._linear(mixed_NLD.transpose(0, 1).reshape(length, width), prefix + self.names.attention_out)

    def _rotate(self, vectors_NLD: Tensor) -> Tensor:
        _, length, size = vectors_NLD.shape
        half = size // 2
        frequencies = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
        cos, sin = angles.cos().float(), angles.sin().float()
        left, right = vectors_NLD[..., :half], vectors_NLD[..., half:]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def _norm(self, states: Tensor, name: str) -> Tensor:
        scale = (states.pow(2).mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return states * scale * self.tensors[name + ".weight"]

    def _linear(self, states: Tensor, name: str) -> Tensor:
        return F.linear(states, self.tensors[name + ".weight"], self.tensors.get(name + ".bias"))

"""Greedy decoding with a KV cache on causal backbones. Texts share a prefix and leave the batch when they end.

The cache's columns are prefix, left padding, texts, decoded tokens. Packed backbones decode with padding, too.

Legend: B rows still decoding, A rows kept, P prefix length, L padded length, C columns so far, H hidden size,
V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.inputs import check_lengths, default_position_ids


def compute_prefix(backbone: Backbone, ids_P: Tensor) -> DynamicCache:
    """Compute the keys and values of a prefix that texts share, one row; it may be empty."""
    prefix = DynamicCache()
    if len(ids_P):
        positions_1P = torch.arange(len(ids_P))[None]
        _run(backbone, prefix, ids_P[None], positions_1P, torch.ones_like(positions_1P, dtype=torch.bool))
    return prefix


def start_decoding(backbone: Backbone, prefix: DynamicCache, ids_BL: Tensor, mask_BL: Tensor) -> Decoding:
    """Run texts after `prefix`; CPU tensors, padded on the left. Raises ValueError if a text is too long."""
    rows, length = len(ids_BL), prefix.get_seq_length()
    assert bool(mask_BL[:, -1].all()), "texts are padded on the left"
    lengths_B = length + mask_BL.long().sum(dim=1)
    check_lengths(lengths_B, backbone.max_length)
    real_BC = torch.cat([mask_BL.new_ones(rows, length), mask_BL], dim=1).bool()
    positions_BL = default_position_ids(real_BC)[:, length:]
    cache = DynamicCache()
    for number, layer in enumerate(prefix.layers):
        cache.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), number)
    real_BC = real_BC.to(backbone.device)
    hidden_BH = _run(backbone, cache, ids_BL, positions_BL, real_BC)[:, -1]
    return Decoding(backbone, cache, real_BC, lengths_B, hidden_BH)


class Decoding:
    """A batch of texts during decoding."""

    def __init__(
        self, backbone: Backbone, cache: DynamicCache, real_BC: Tensor, lengths_B: Tensor, hidden_BH: Tensor
    ) -> None:
        self._backbone = backbone
        self._cache = cache
        self._real_BC = real_BC
        # On the CPU, so that the check of lengths does not stall a GPU.
        self._lengths_B = lengths_B
        self.hidden_BH = hidden_BH
        """Final hidden state of each text's last token, in the backbone's dtype and on its device."""

    def next_tokens(self) -> Tensor:
        """Return the most likely next token of each text, int64 [B]."""
        logits_BV: Tensor = self._backbone.output_projection(self._backbone.head_input(self.hidden_BH))
        return logits_BV.argmax(dim=-1)

    def keep(self, rows_A: Tensor) -> None:
        """Keep only `rows_A` (int64 on the CPU), in that order."""
        self._lengths_B = self._lengths_B[rows_A]
        rows_A = rows_A.to(self._backbone.device)
        self._cache.batch_select_indices(rows_A)
        self._real_BC, self.hidden_BH = self._real_BC[rows_A], self.hidden_BH[rows_A]

    def feed(self, ids_B: Tensor) -> Tensor:
        """Append a token to each text and return its state, [B, H]. Raises ValueError if a text gets too long."""
        positions_BL = self._lengths_B[:, None]
        self._lengths_B = self._lengths_B + 1
        check_lengths(self._lengths_B, self._backbone.max_length)
        self._real_BC = torch.cat([self._real_BC, self._real_BC.new_ones(len(ids_B), 1)], dim=1)
        self.hidden_BH = _run(self._backbone, self._cache, ids_B[:, None], positions_BL, self._real_BC)[:, -1]
        return self.hidden_BH


def _run(backbone: Backbone, cache: DynamicCache, ids_BL: Tensor, positions_BL: Tensor, real_BC: Tensor) -> Tensor:
    mask = real_BC.to(backbone.device)
    if backbone.is_packed:
        # transformers makes no mask for packed attention. Tokens attend to themselves, so that padding stays finite.
        column_C = torch.arange(mask.shape[1], device=mask.device)
        column_L1 = column_C[-ids_BL.shape[1] :, None]
        mask = mask[:, None, None] & (column_C <= column_L1) | (column_C == column_L1)
    output = backbone.model.base_model(
        input_ids=ids_BL.to(backbone.device, torch.long),
        position_ids=positions_BL.to(backbone.device, torch.long),
        past_key_values=cache,
        use_cache=True,
        attention_mask=mask,
    )
    hidden_BLH: Tensor = output.last_hidden_state
    return hidden_BLH

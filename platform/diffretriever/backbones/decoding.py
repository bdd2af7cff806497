"""Greedy decoding with cached keys and values, over causal backbones; texts share their prefix and leave when done.

Columns of the cache: the prefix, pads on the left, the texts, the tokens fed since. Pads are never attended and
positions do not count them, so that each text is computed as if it were alone.

A backbone that packs texts computes the prefix and the texts without pads; their keys and values then take the columns
of the cache, and steps, a token a text, have nothing to pad.

Legend: B rows still decoding, A rows kept, P prefix length, L padded length, C columns so far, T tokens of all texts,
H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.inputs import default_position_ids
from diffretriever.backbones.packed import PackedBatch, after_prefix


class Prefix(NamedTuple):
    """The keys and values of tokens that many texts start with."""

    length: int
    """P; 0 for no prefix."""
    layers: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values of each layer, one row."""


class Decoder:
    """Begins the decoding of texts by a causal backbone. Gradients flow unless the caller forbids them.

    Raises:
        ValueError: The backbone is not causal: what a token attends to changes with the tokens after it.
    """

    def __init__(self, backbone: Backbone) -> None:
        if not backbone.is_causal:
            raise ValueError(
                f"the backbone's family '{backbone.family}' is not causal, so it cannot generate token by token: "
                "take Qwen2.5 or LLaMA 3, or the method `masked`"
            )
        self.backbone = backbone

    def prefix(self, ids_P: Tensor) -> Prefix:
        """Compute the keys and values of `ids_P`, integers; none for an empty prefix."""
        if len(ids_P) == 0:
            return Prefix(0, ())
        cache = DynamicCache()
        ids_BL = ids_P[None]
        positions_BL = torch.arange(len(ids_P))[None]
        if self.backbone.is_packed:
            _run_packed(self.backbone, cache, ids_BL, positions_BL, torch.tensor([len(ids_P)]))
        else:
            _run(self.backbone, cache, ids_BL, torch.ones_like(ids_BL), positions_BL)
        return Prefix(len(ids_P), tuple((layer.keys, layer.values) for layer in cache.layers))

    def start(self, prefix: Prefix, ids_BL: Tensor, mask_BL: Tensor) -> Decoding:
        """Run what comes after `prefix` in each text.

        Args:
            prefix: What all the texts start with.
            ids_BL: Integers on the CPU, padded on the left; at least one token a row.
            mask_BL: The same shape, 1 or True for a token.

        Raises:
            ValueError: The texts are longer than the backbone takes.
        """
        rows = len(ids_BL)
        assert bool(mask_BL[:, -1].all()), "texts are padded on the left"
        lengths_B = prefix.length + mask_BL.long().sum(dim=1)
        _check_lengths(self.backbone, lengths_B)
        shared = mask_BL.new_ones(rows, prefix.length)
        mask_BC = torch.cat([shared, mask_BL], dim=1)
        positions_BL = default_position_ids(mask_BC)[:, prefix.length :]
        begin = self._begin_packed if self.backbone.is_packed else self._begin_padded
        cache, hidden_BH = begin(prefix, ids_BL, mask_BC, positions_BL)
        return Decoding(self.backbone, cache, mask_BC.to(self.backbone.device), lengths_B, hidden_BH)

    def _begin_padded(
        self, prefix: Prefix, ids_BL: Tensor, mask_BC: Tensor, positions_BL: Tensor
    ) -> tuple[DynamicCache, Tensor]:
        cache = DynamicCache()
        for number, (keys, values) in enumerate(prefix.layers):
            cache.update(keys.expand(len(ids_BL), -1, -1, -1), values.expand(len(ids_BL), -1, -1, -1), number)
        return cache, _run(self.backbone, cache, ids_BL, mask_BC, positions_BL)

    def _begin_packed(
        self, prefix: Prefix, ids_BL: Tensor, mask_BC: Tensor, positions_BL: Tensor
    ) -> tuple[DynamicCache, Tensor]:
        row = DynamicCache()
        for number, (keys, values) in enumerate(prefix.layers):
            row.update(keys, values, number)
        mask_BL = mask_BC[:, prefix.length :]
        texts = PackedBatch(mask_BL, None)
        hidden_TH = _run_packed(
            self.backbone, row, texts.row(ids_BL), texts.row(positions_BL), mask_BL.long().sum(dim=1)
        )
        shared_BP = torch.arange(prefix.length).expand(len(ids_BL), -1)
        places_BC = torch.cat([shared_BP, prefix.length + texts.places_BL], dim=1).to(self.backbone.device)
        cache = DynamicCache()
        for number, layer in enumerate(row.layers):
            cache.update(_spread(layer.keys, places_BC), _spread(layer.values, places_BC), number)
        return cache, hidden_TH[texts.places_BL[:, -1].to(self.backbone.device)]


class Decoding:
    """Texts that are being decoded together."""

    def __init__(
        self, backbone: Backbone, cache: DynamicCache, mask_BC: Tensor, lengths_B: Tensor, hidden_BH: Tensor
    ) -> None:
        self._backbone = backbone
        self._cache = cache
        self._mask_BC = mask_BC
        # On the CPU, so that holding it against the model's length does not stall a GPU.
        self._lengths_B = lengths_B
        self.hidden_BH = hidden_BH
        """State after the final norm at each text's last token, in the backbone's dtype on its device."""

    def next_tokens(self) -> Tensor:
        """Return int64 [B]: the token that each text's last state predicts most strongly, of the whole vocabulary."""
        logits_BV: Tensor = self._backbone.output_projection(self._backbone.head_input(self.hidden_BH))
        return logits_BV.argmax(dim=-1)

    def keep(self, rows_A: Tensor) -> None:
        """Keep the rows `rows_A`, int64 on the CPU, in that order; the others are never computed again."""
        self._lengths_B = self._lengths_B[rows_A]
        rows_A = rows_A.to(self._backbone.device)
        self._cache.batch_select_indices(rows_A)
        self._mask_BC, self.hidden_BH = self._mask_BC[rows_A], self.hidden_BH[rows_A]

    def feed(self, ids_B: Tensor) -> Tensor:
        """Append one token to each text and return the state there, [B, H].

        Raises:
            ValueError: A text has grown longer than the backbone takes.
        """
        positions_BL = self._lengths_B[:, None]
        self._lengths_B = self._lengths_B + 1
        _check_lengths(self._backbone, self._lengths_B)
        self._mask_BC = torch.cat([self._mask_BC, self._mask_BC.new_ones(len(ids_B), 1)], dim=1)
        self.hidden_BH = _run(self._backbone, self._cache, ids_B[:, None], self._mask_BC, positions_BL)
        return self.hidden_BH


def _run_packed(
    backbone: Backbone, cache: DynamicCache, ids_1T: Tensor, positions_1T: Tensor, lengths_B: Tensor
) -> Tensor:
    """Append texts without pads, of `lengths_B` tokens, to the cache's one row and return their states [T, H]."""
    output = backbone.model.base_model(
        input_ids=ids_1T.to(backbone.device, torch.long),
        position_ids=positions_1T.to(backbone.device, torch.long),
        past_key_values=cache,
        use_cache=True,
        packed_layout=after_prefix(cache.get_seq_length(), lengths_B, backbone.device, backbone.dtype),
    )
    hidden_TH: Tensor = output.last_hidden_state[0]
    return hidden_TH


def _spread(values: Tensor, places_BC: Tensor) -> Tensor:
    """Return rows of the cache's one row [1, heads, tokens, D]: [B, heads, C, D]."""
    return values[0][:, places_BC].transpose(0, 1)


def _run(backbone: Backbone, cache: DynamicCache, ids_BL: Tensor, mask_BC: Tensor, positions_BL: Tensor) -> Tensor:
    """Append `ids_BL` to the cache and return the state [B, H] at the last column."""
    real_BC = mask_BC.to(backbone.device, torch.bool)
    output = backbone.model.base_model(
        input_ids=ids_BL.to(backbone.device, torch.long),
        # Of an attention of our own transformers makes no masks: a step's is one row, the same for all heads.
        attention_mask=real_BC[:, None, None] if backbone.is_packed else real_BC,
        position_ids=positions_BL.to(backbone.device, torch.long),
        past_key_values=cache,
        use_cache=True,
    )
    hidden_BH: Tensor = output.last_hidden_state[:, -1]
    return hidden_BH


def _check_lengths(backbone: Backbone, lengths_B: Tensor) -> None:
    longest = int(lengths_B.max())
    if longest > backbone.max_length:
        raise ValueError(f"a row has {longest} tokens; this backbone takes {backbone.max_length}: truncate it.")

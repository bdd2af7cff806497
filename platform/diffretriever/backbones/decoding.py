"""Greedy decoding with cached keys and values, over causal backbones; texts share their prefix and leave when done.

Columns of the cache: the prefix, padding on the left, the texts, the tokens fed since. Padding is never attended to and
positions do not count it. A packed backbone computes prefix and texts without padding and then spreads keys and values
over the columns.

Legend: B rows still decoding, A rows kept, P prefix length, L padded length, C columns so far, T tokens of all texts,
H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.inputs import check_lengths, default_position_ids
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
        cache = DynamicCache()
        if len(ids_P):
            positions_BL = torch.arange(len(ids_P))[None]
            _run(self.backbone, cache, ids_P[None], positions_BL, self._first_attention(0, torch.ones(1, len(ids_P))))
        return Prefix(len(ids_P), tuple((layer.keys, layer.values) for layer in cache.layers))

    def start(self, prefix: Prefix, ids_BL: Tensor, mask_BL: Tensor) -> Decoding:
        """Run the texts after `prefix`, on the CPU and padded on the left, at least one token a row.

        Raises:
            ValueError: The texts are longer than the backbone takes.
        """
        rows = len(ids_BL)
        assert bool(mask_BL[:, -1].all()), "texts are padded on the left"
        lengths_B = prefix.length + mask_BL.long().sum(dim=1)
        check_lengths(lengths_B, self.backbone.max_length)
        shared = mask_BL.new_ones(rows, prefix.length)
        mask_BC = torch.cat([shared, mask_BL], dim=1)
        positions_BL = default_position_ids(mask_BC)[:, prefix.length :]
        attention = self._first_attention(prefix.length, mask_BC)
        cache = DynamicCache()
        # A packed row has the prefix once, a padded batch in each row.
        copies = 1 if self.backbone.is_packed else rows
        for number, (keys, values) in enumerate(prefix.layers):
            cache.update(keys.expand(copies, -1, -1, -1), values.expand(copies, -1, -1, -1), number)
        if self.backbone.is_packed:
            texts = PackedBatch(mask_BL, None)
            row = (texts.row(ids_BL), texts.row(positions_BL))
            hidden_TH = _run(self.backbone, cache, *row, attention)[0]
            hidden_BH = hidden_TH[texts.places_BL[:, -1].to(self.backbone.device)]
            shared_BP = torch.arange(prefix.length).expand(rows, -1)
            places_BC = torch.cat([shared_BP, prefix.length + texts.places_BL], dim=1).to(self.backbone.device)
            cache = _spread(cache, places_BC)
        else:
            hidden_BH = _run(self.backbone, cache, ids_BL, positions_BL, attention)[:, -1]
        return Decoding(self.backbone, cache, mask_BC.to(self.backbone.device), lengths_B, hidden_BH)

    def _first_attention(self, prefix: int, mask_BC: Tensor) -> dict[str, Any]:
        """Return the mask or the layout of a pass over all columns after the first `prefix` ones."""
        if not self.backbone.is_packed:
            return {"attention_mask": mask_BC.to(self.backbone.device, torch.bool)}
        lengths_B = mask_BC[:, prefix:].long().sum(dim=1)
        return {"packed_layout": after_prefix(prefix, lengths_B, self.backbone.device, self.backbone.dtype)}


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
        check_lengths(self._lengths_B, self._backbone.max_length)
        self._mask_BC = torch.cat([self._mask_BC, self._mask_BC.new_ones(len(ids_B), 1)], dim=1)
        real_BC = self._mask_BC.bool()
        # Of a packed attention transformers makes no masks: a step's is one row, the same for all heads.
        mask = {"attention_mask": real_BC[:, None, None] if self._backbone.is_packed else real_BC}
        self.hidden_BH = _run(self._backbone, self._cache, ids_B[:, None], positions_BL, mask)[:, -1]
        return self.hidden_BH


def _run(
    backbone: Backbone, cache: DynamicCache, ids_BL: Tensor, positions_BL: Tensor, attention: dict[str, Any]
) -> Tensor:
    """Append tokens to the cache and return their states [B, L, H]."""
    output = backbone.model.base_model(
        input_ids=ids_BL.to(backbone.device, torch.long),
        position_ids=positions_BL.to(backbone.device, torch.long),
        past_key_values=cache,
        use_cache=True,
        **attention,
    )
    hidden_BLH: Tensor = output.last_hidden_state
    return hidden_BLH


def _spread(row: DynamicCache, places_BC: Tensor) -> DynamicCache:
    """Return a cache whose columns are places in a cache of one row."""
    cache = DynamicCache()
    for number, layer in enumerate(row.layers):
        keys, values = (each[0][:, places_BC].transpose(0, 1) for each in (layer.keys, layer.values))
        cache.update(keys, values, number)
    return cache

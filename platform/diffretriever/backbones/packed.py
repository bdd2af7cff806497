"""Packed sequences: texts concatenated in one row without padding (varlen attention).

The attention function is registered with transformers, and gets the row's layout in place of a mask. With nested slots,
the tokens of all texts come first and then all slots, so that each part is a slice of the row.

Legend: B texts, L padded length, T tokens of the row, M attended tokens (with repetitions), N attention heads, G heads
of keys and values, Q queries and K keys of a text, D size of a head, E = B + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffretriever.backbones.cpu_tuning import computes_bfloat16
from diffretriever.backbones.device import has_varlen_kernel, moved

KERNEL = "diffretriever_packed"
"""transformers' name of this attention."""
_ALL, _CAUSAL = (-1, -1), (-1, 0)
_PRODUCT_KEYS = 64
"""Minimum length of the longest text for which two matrix products are faster than torch's kernel (CPU, measured)."""


@cache
def way_of(device: torch.device, dtype: torch.dtype) -> str:
    """Return the fastest attention of a device: `varlen` (torch's kernel), `products` (for long texts) or `sdpa`."""
    if has_varlen_kernel(device, dtype):
        return "varlen"
    return "products" if device.type == "cpu" and dtype == torch.bfloat16 and computes_bfloat16() else "sdpa"


class Spans(NamedTuple):
    """The boundaries of consecutive texts in a row."""

    offsets_E: Tensor
    """int32, on the backbone's device: the start of each text, and the end of the last one."""
    longest: int
    """Number of tokens of the longest text, or an upper bound."""
    lengths_B: Tensor
    """int64, on the CPU: number of tokens of each text."""

    @classmethod
    def of(cls, lengths_B: Tensor, device: torch.device) -> Spans:
        """Return the boundaries of texts of these lengths, int64 on the CPU."""
        offsets_E = torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)]).int()
        return cls(moved(offsets_E, device), int(lengths_B.max()), lengths_B)


class Group(NamedTuple):
    """Consecutive texts with equal numbers of queries and of keys."""

    queries: int
    keys: int
    texts: int
    sees: Tensor | None
    """bool [Q, K], on the backbone's device: the attention mask; None: attend to all keys."""


@dataclass(frozen=True)
class Part:
    """A slice of the row whose tokens have the same attention pattern."""

    tokens: slice
    queries: Spans
    """Boundaries of the texts' queries, at least one for each text."""
    keys: Spans
    """Boundaries of the texts' keys."""
    keys_M: Tensor | None
    """int64, on the backbone's device: indices of the keys in the row; None: the slice itself."""
    window: tuple[int, int]
    """Sliding window (left, right); -1: unlimited. Queries are aligned to the end of the keys."""

    @cached_property
    def groups(self) -> list[Group]:
        """Consecutive texts of equal lengths; torch's varlen kernel does not need them."""
        device, groups = self.queries.offsets_E.device, []
        sizes = zip(self.queries.lengths_B.tolist(), self.keys.lengths_B.tolist(), strict=True)
        for (queries, keys), equal in groupby(sizes):
            groups.append(Group(queries, keys, len(list(equal)), _window_mask(queries, keys, self.window, device)))
        return groups


@dataclass(frozen=True)
class Layout:
    """The attention pattern of a row, divided into consecutive parts."""

    everywhere: tuple[Part, ...]
    """Parts for layers with global attention."""
    near: tuple[Part, ...] = ()
    """Parts for layers with local attention; empty for models without such layers."""
    memory: dict[nn.Module, tuple[Tensor, Tensor]] | None = None
    """Keys and values [1, G, T, D] of the first of two passes over a row, by attention module."""

    def in_two(self) -> tuple[Layout, Layout]:
        """Split into a pass over all parts but the last, and a second pass over the last, which attends to both."""
        last = self.everywhere[-1]
        memory: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        second = replace(last, tokens=slice(0, last.tokens.stop - last.tokens.start))
        return Layout(self.everywhere[:-1], memory=memory), Layout((second,), memory=memory)


class PackedBatch:
    """Packs a padded batch into a row, on the CPU."""

    def __init__(self, mask_BL: Tensor, nested_BL: Tensor | None) -> None:
        """Assign each token an index in the row; `nested_BL` has the index of nested slots, -1 for other tokens."""
        real_BL = mask_BL.cpu().bool()
        columns_T = real_BL.flatten().nonzero()[:, 0]
        self.first_slot = len(columns_T)
        """Index of the first nested slot in the row; the row's length if there are none."""
        if nested_BL is not None:
            slot_T = nested_BL.cpu().flatten()[columns_T]
            columns_T = torch.cat([columns_T[slot_T < 0], columns_T[slot_T >= 0]])
            self.first_slot = int((slot_T < 0).sum())
        self._columns_T = columns_T
        places_BL = torch.zeros(real_BL.shape, dtype=torch.int64)
        places_BL.view(-1)[columns_T] = torch.arange(len(columns_T))
        first_B1 = places_BL.gather(1, real_BL.int().argmax(dim=1, keepdim=True))
        self.places_BL = torch.where(real_BL, places_BL, first_B1)
        """int64, index in the row; padding has that of a token of the same text, so NaN stays within a text."""

    def row(self, values_BL: Tensor) -> Tensor:
        """Return the values of the row's tokens, [1, T] on the CPU."""
        return values_BL.cpu().flatten()[self._columns_T][None]

    def layout(self, device: torch.device, *, is_causal: bool, window: int | None) -> Layout:
        """Return the attention pattern of the row.

        `window` is the reach of local attention to either side; None without such layers, and for nested slots.
        """
        texts, first = len(self.places_BL), self.first_slot
        owner_T = self._columns_T // self.places_BL.shape[1]
        texts_B = owner_T[:first].bincount(minlength=texts)
        everywhere = _apart(texts_B, device, _CAUSAL if is_causal else _ALL)
        if first == len(owner_T):
            return Layout(everywhere, () if window is None else _apart(texts_B, device, (window, window)))
        assert window is None, "nested slots with local attention run with padding"
        # Slot i attends to its text and slots up to i: causal attention over the text followed by its slots.
        slots_B = owner_T[first:].bincount(minlength=texts)
        has_slots_B = slots_B > 0
        keys_M = owner_T.argsort(stable=True)
        keys_M = keys_M[has_slots_B[owner_T[keys_M]]]
        queries, keys = Spans.of(slots_B[has_slots_B], device), Spans.of((texts_B + slots_B)[has_slots_B], device)
        slots = Part(slice(first, len(owner_T)), queries, keys, moved(keys_M, device), _CAUSAL)
        return Layout((*everywhere, slots))


def _apart(lengths_B: Tensor, device: torch.device, window: tuple[int, int]) -> tuple[Part, ...]:
    lengths_B = lengths_B[lengths_B > 0]
    if len(lengths_B) == 0:
        return ()
    spans = Spans.of(lengths_B, device)
    return (Part(slice(0, int(lengths_B.sum())), spans, spans, None, window),)


# Not compiled: a graph would be specialised to one layout.
@torch.compiler.disable
def packed_attention(  # noqa: PLR0913 (transformers' signature)
    module: Any,
    query_1NTD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention as an attention function of transformers; return [1, T, N, D].

    Decoding and padded passes have a mask in place of a layout. `sliding_window` is None in layers with global
    attention.
    """
    if packed_layout is None:
        assert attention_mask is not None, "attention needs a layout or a mask"
        return sdpa_attention_forward(
            module, query_1NTD, key_1GTD, value_1GTD, attention_mask, dropout=dropout, scaling=scaling
        )
    if packed_layout.memory is not None:
        earlier = packed_layout.memory
        if module in earlier:
            key_1GTD = torch.cat([earlier[module][0], key_1GTD], dim=2)
            value_1GTD = torch.cat([earlier[module][1], value_1GTD], dim=2)
        else:
            earlier[module] = (key_1GTD, value_1GTD)
    query_TND, key_TGD, value_TGD = (heads[0].transpose(0, 1) for heads in (query_1NTD, key_1GTD, value_1GTD))
    outputs = []
    for part in packed_layout.everywhere if sliding_window is None else packed_layout.near:
        keys = part.tokens if part.keys_M is None else part.keys_M
        outputs.append(_attend(part, query_TND[part.tokens], key_TGD[keys], value_TGD[keys], scaling, dropout))
    # Most rows have one part, which needs no copy.
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _attend(
    part: Part, query_TND: Tensor, key_MGD: Tensor, value_MGD: Tensor, scaling: float | None, dropout: float
) -> Tensor:
    """Return [T, N, D], by torch's varlen kernel or by one call per group of texts of equal length."""
    is_grouped = query_TND.shape[1] != key_MGD.shape[1]
    way = way_of(query_TND.device, query_TND.dtype)
    if way == "varlen" and dropout == 0:
        attended_TND = varlen_attn(
            query_TND,
            key_MGD,
            value_MGD,
            part.queries.offsets_E,
            part.keys.offsets_E,
            part.queries.longest,
            part.keys.longest,
            scale=scaling,
            window_size=part.window,
            enable_gqa=is_grouped,
        )
        assert isinstance(attended_TND, Tensor), "only one result was requested"
        return attended_TND
    is_long = part.keys.longest >= _PRODUCT_KEYS and dropout == 0
    by_products = way == "products" and is_long and not is_grouped and not torch.is_grad_enabled()
    attend = _attend_by_products if by_products else scaled_dot_product_attention
    # Split, not sliced: the gradient of each slice would be as large as the row.
    queries = query_TND.split([group.queries * group.texts for group in part.groups])
    rows = [group.keys * group.texts for group in part.groups]
    outputs = []
    for group, *heads in zip(part.groups, queries, key_MGD.split(rows), value_MGD.split(rows), strict=True):
        query_BNQD, key_BGKD, value_BGKD = (tensor.unflatten(0, (group.texts, -1)).transpose(1, 2) for tensor in heads)
        attended_BNQD = attend(
            query_BNQD,
            key_BGKD,
            value_BGKD,
            attn_mask=group.sees,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=is_grouped,
        )
        outputs.append(attended_BNQD.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend_by_products(
    query_BNQD: Tensor,
    key_BNKD: Tensor,
    value_BNKD: Tensor,
    *,
    attn_mask: Tensor | None,
    scale: float | None,
    **_: Any,
) -> Tensor:
    # Text by text, so that a text's scores stay in the CPU's cache.
    scaled_BNQD = query_BNQD * (query_BNQD.shape[3] ** -0.5 if scale is None else scale)
    attended_BNQD = torch.empty_like(query_BNQD)
    for text in range(len(query_BNQD)):
        scores_NQK = torch.bmm(scaled_BNQD[text], key_BNKD[text].mT)
        if attn_mask is not None:
            scores_NQK.masked_fill_(~attn_mask, -torch.inf)
        # From 80 keys on, oneDNN's softmax takes 0.4 to 1 times as long as torch's.
        weights_NQK = scores_NQK.to_mkldnn().softmax(-1).to_dense()
        torch.bmm(weights_NQK, value_BNKD[text], out=attended_BNQD[text])
    return attended_BNQD


def _window_mask(queries: int, keys: int, window: tuple[int, int], device: torch.device) -> Tensor | None:
    before, after = (keys - 1 if window[0] < 0 else window[0]), (queries - 1 if window[1] < 0 else window[1])
    if before >= keys - 1 and after >= queries - 1:
        return None
    query_position_Q1 = torch.arange(keys - queries, keys, device=device)[:, None]
    distance_QK = torch.arange(keys, device=device) - query_position_Q1
    return (distance_QK >= -before) & (distance_QK <= after)


ALL_ATTENTION_FUNCTIONS.register(KERNEL, packed_attention)

"""Packed sequences: texts concatenated in one row without padding (varlen attention).

The attention function is registered with transformers, and gets the row's layout in place of a mask. With nested slots,
the tokens of all texts come first and then all slots, so that each span is a slice of the row.

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
from diffretriever.backbones.device import has_varlen_kernel, to_device

KERNEL = "diffretriever_packed"
"""transformers' name of this attention."""
_ALL, _CAUSAL = (-1, -1), (-1, 0)
_PRODUCT_KEYS = 64
"""Minimum length of the longest text for which two matrix products are faster than torch's kernel (CPU, measured)."""


@cache
def attention_kernel(device: torch.device, dtype: torch.dtype) -> str:
    """Return the fastest attention of a device: `varlen` (torch's kernel), `products` (for long texts) or `sdpa`."""
    if has_varlen_kernel(device, dtype):
        return "varlen"
    return "products" if device.type == "cpu" and dtype == torch.bfloat16 and computes_bfloat16() else "sdpa"


class TextBounds(NamedTuple):
    """The boundaries of consecutive texts in a row."""

    offsets_E: Tensor
    """int32, on the backbone's device: the start of each text, and the end of the last one."""
    longest: int
    """Number of tokens of the longest text, or an upper bound."""
    lengths_B: Tensor
    """int64, on the CPU: number of tokens of each text."""

    @classmethod
    def of(cls, lengths_B: Tensor, device: torch.device) -> TextBounds:
        """Return the boundaries of texts of these lengths, int64 on the CPU."""
        offsets_E = torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)]).int()
        return cls(to_device(offsets_E, device), int(lengths_B.max()), lengths_B)


class EqualLengths(NamedTuple):
    """Consecutive texts with equal numbers of queries and of keys."""

    queries: int
    keys: int
    texts: int
    mask: Tensor | None
    """bool [Q, K], on the backbone's device: the attention mask; None: attend to all keys."""


@dataclass(frozen=True)
class AttentionSpan:
    """A slice of the row whose tokens have the same attention pattern."""

    tokens: slice
    queries: TextBounds
    """Boundaries of the texts' queries, at least one for each text."""
    keys: TextBounds
    """Boundaries of the texts' keys."""
    keys_M: Tensor | None
    """int64, on the backbone's device: indices of the keys in the row; None: the slice itself."""
    window: tuple[int, int]
    """Sliding window (left, right); -1: unlimited. Queries are aligned to the end of the keys."""

    @cached_property
    def groups(self) -> list[EqualLengths]:
        """Consecutive texts of equal lengths; torch's varlen kernel does not need them."""
        device, groups = self.queries.offsets_E.device, []
        sizes = zip(self.queries.lengths_B.tolist(), self.keys.lengths_B.tolist(), strict=True)
        for (queries, keys), equal in groupby(sizes):
            groups.append(
                EqualLengths(queries, keys, len(list(equal)), _window_mask(queries, keys, self.window, device))
            )
        return groups


@dataclass(frozen=True)
class PackedLayout:
    """The attention pattern of a row, divided into consecutive spans."""

    global_spans: tuple[AttentionSpan, ...]
    """Spans of layers with global attention."""
    local_spans: tuple[AttentionSpan, ...] = ()
    """Spans of layers with local attention; empty for models without such layers."""
    kv_cache: dict[nn.Module, tuple[Tensor, Tensor]] | None = None
    """Keys and values [1, G, T, D] of the first of two passes over a row, by attention module."""

    def split_before_slots(self) -> tuple[PackedLayout, PackedLayout]:
        """Split into a pass over the texts, and a second pass over their slots, which attend to both."""
        last = self.global_spans[-1]
        kv_cache: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        second = replace(last, tokens=slice(0, last.tokens.stop - last.tokens.start))
        return PackedLayout(self.global_spans[:-1], kv_cache=kv_cache), PackedLayout((second,), kv_cache=kv_cache)


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
        row_index_BL = torch.zeros(real_BL.shape, dtype=torch.int64)
        row_index_BL.view(-1)[columns_T] = torch.arange(len(columns_T))
        first_B1 = row_index_BL.gather(1, real_BL.int().argmax(dim=1, keepdim=True))
        self.row_index_BL = torch.where(real_BL, row_index_BL, first_B1)
        """int64, index in the row; padding has that of a token of the same text, so NaN stays within a text."""

    def row(self, values_BL: Tensor) -> Tensor:
        """Return the values of the row's tokens, [1, T] on the CPU."""
        return values_BL.cpu().flatten()[self._columns_T][None]

    def layout(self, device: torch.device, *, is_causal: bool, window: int | None) -> PackedLayout:
        """Return the attention pattern of the row.

        `window` is the reach of local attention to either side; None without such layers, and for nested slots.
        """
        texts, first_slot = len(self.row_index_BL), self.first_slot
        text_T = self._columns_T // self.row_index_BL.shape[1]
        texts_B = text_T[:first_slot].bincount(minlength=texts)
        global_spans = _text_span(texts_B, device, _CAUSAL if is_causal else _ALL)
        if first_slot == len(text_T):
            return PackedLayout(global_spans, () if window is None else _text_span(texts_B, device, (window, window)))
        assert window is None, "nested slots with local attention run with padding"
        # Slot i attends to its text and slots up to i: causal attention over the text followed by its slots.
        slots_B = text_T[first_slot:].bincount(minlength=texts)
        has_slots_B = slots_B > 0
        keys_M = text_T.argsort(stable=True)
        keys_M = keys_M[has_slots_B[text_T[keys_M]]]
        queries = TextBounds.of(slots_B[has_slots_B], device)
        keys = TextBounds.of((texts_B + slots_B)[has_slots_B], device)
        slots = AttentionSpan(slice(first_slot, len(text_T)), queries, keys, to_device(keys_M, device), _CAUSAL)
        return PackedLayout((*global_spans, slots))


def _text_span(lengths_B: Tensor, device: torch.device, window: tuple[int, int]) -> tuple[AttentionSpan, ...]:
    lengths_B = lengths_B[lengths_B > 0]
    if len(lengths_B) == 0:
        return ()
    bounds = TextBounds.of(lengths_B, device)
    return (AttentionSpan(slice(0, int(lengths_B.sum())), bounds, bounds, None, window),)


# Not compiled: a graph would be specialised to one layout.
@torch.compiler.disable
def packed_attention(  # noqa: PLR0913 (transformers' signature)
    module: Any,
    query_1NTD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: PackedLayout | None = None,
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
    if packed_layout.kv_cache is not None:
        kv_cache = packed_layout.kv_cache
        if module in kv_cache:
            key_1GTD = torch.cat([kv_cache[module][0], key_1GTD], dim=2)
            value_1GTD = torch.cat([kv_cache[module][1], value_1GTD], dim=2)
        else:
            kv_cache[module] = (key_1GTD, value_1GTD)
    query_TND, key_TGD, value_TGD = (heads[0].transpose(0, 1) for heads in (query_1NTD, key_1GTD, value_1GTD))
    outputs = []
    for span in packed_layout.global_spans if sliding_window is None else packed_layout.local_spans:
        keys = span.tokens if span.keys_M is None else span.keys_M
        outputs.append(_attend(span, query_TND[span.tokens], key_TGD[keys], value_TGD[keys], scaling, dropout))
    # Most rows have one span, which needs no copy.
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _attend(
    span: AttentionSpan, query_TND: Tensor, key_MGD: Tensor, value_MGD: Tensor, scaling: float | None, dropout: float
) -> Tensor:
    """Return [T, N, D], by torch's varlen kernel or by one call per group of texts of equal length."""
    is_grouped = query_TND.shape[1] != key_MGD.shape[1]
    kernel = attention_kernel(query_TND.device, query_TND.dtype)
    if kernel == "varlen" and dropout == 0:
        attended_TND = varlen_attn(
            query_TND,
            key_MGD,
            value_MGD,
            span.queries.offsets_E,
            span.keys.offsets_E,
            span.queries.longest,
            span.keys.longest,
            scale=scaling,
            window_size=span.window,
            enable_gqa=is_grouped,
        )
        assert isinstance(attended_TND, Tensor), "only one result was requested"
        return attended_TND
    is_long = span.keys.longest >= _PRODUCT_KEYS and dropout == 0
    by_products = kernel == "products" and is_long and not is_grouped and not torch.is_grad_enabled()
    attend = _attend_by_products if by_products else scaled_dot_product_attention
    # Split, not sliced: the gradient of each slice would be as large as the row.
    queries = query_TND.split([group.queries * group.texts for group in span.groups])
    rows = [group.keys * group.texts for group in span.groups]
    outputs = []
    for group, *heads in zip(span.groups, queries, key_MGD.split(rows), value_MGD.split(rows), strict=True):
        query_BNQD, key_BGKD, value_BGKD = (tensor.unflatten(0, (group.texts, -1)).transpose(1, 2) for tensor in heads)
        attended_BNQD = attend(
            query_BNQD,
            key_BGKD,
            value_BGKD,
            attn_mask=group.mask,
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

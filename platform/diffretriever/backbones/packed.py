"""Texts in one row without padding (varlen attention): the layout of the row, and the attention over it.

The models of transformers run such a row as they are: this attention is registered with transformers, and a pass gives
it the layout of its texts in place of a mask. Tokens are in the order of the texts. In a pass with nested slots the
tokens that are not slots come first, of all texts, and then the slots, so that either part is a slice of the row.

Legend: B texts, L padded length, T tokens of the row, S of them slots, M tokens that are attended to (one as often as
texts attend to it), N attention heads, G heads of keys and values, Q queries and K keys of a text, D size of a head, E
one more than there are texts.
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
"""Tokens of the longest text from which on two matrix products are faster than torch's kernel (measured on a CPU)."""


@cache
def way_of(device: torch.device, dtype: torch.dtype) -> str:
    """Return how a device attends fastest: torch's kernel for any lengths, two products for long texts, or SDPA."""
    if has_varlen_kernel(device, dtype):
        return "varlen"
    return "products" if device.type == "cpu" and dtype == torch.bfloat16 and computes_bfloat16() else "sdpa"


class Spans(NamedTuple):
    """Tokens of several texts, text after text."""

    offsets_E: Tensor
    """int32, on the backbone's device: where each text begins, and where the last one ends."""
    longest: int
    """Tokens of the longest text, or more."""
    lengths_B: Tensor
    """int64, on the CPU: tokens of each text."""

    @classmethod
    def of(cls, lengths_B: Tensor, device: torch.device) -> Spans:
        """Return the spans of texts with these numbers of tokens, int64 on the CPU."""
        offsets_E = torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)]).int()
        return cls(moved(offsets_E, device), int(lengths_B.max()), lengths_B)


class Group(NamedTuple):
    """Neighbouring texts that each have this number of queries and of keys."""

    queries: int
    keys: int
    texts: int
    sees: Tensor | None
    """bool [Q, K], on the backbone's device: the keys that each query attends to; None: all of them."""


@dataclass(frozen=True)
class Part:
    """A slice of the row, whose tokens attend in the same way."""

    tokens: slice
    queries: Spans
    """The tokens of the slice: at least one of each text."""
    keys: Spans
    """The tokens that they attend to, of the same texts."""
    keys_M: Tensor | None
    """int64, on the backbone's device: the places of those in the row; None: the slice itself."""
    window: tuple[int, int]
    """Sliding window (left, right), -1 is unlimited. Queries are aligned to the end of the keys."""

    @cached_property
    def groups(self) -> list[Group]:
        """The texts by equal lengths, in their order; torch's varlen kernel does without."""
        device, groups = self.queries.offsets_E.device, []
        sizes = zip(self.queries.lengths_B.tolist(), self.keys.lengths_B.tolist(), strict=True)
        for (queries, keys), equal in groupby(sizes):
            groups.append(Group(queries, keys, len(list(equal)), _window_mask(queries, keys, self.window, device)))
        return groups


@dataclass(frozen=True)
class Layout:
    """Which tokens attend to which, by parts that together are the row, in its order."""

    everywhere: tuple[Part, ...]
    """In layers that attend to the whole text."""
    near: tuple[Part, ...] = ()
    """In layers that attend to a window; none for families without such layers."""
    memory: dict[nn.Module, tuple[Tensor, Tensor]] | None = None
    """Keys and values [1, G, T, D] by the layer's attention, of the first pass of a row that is run in two."""

    def in_two(self) -> tuple[Layout, Layout]:
        """Return the layouts of a pass over all but the last part, and of one over that part, which attends back."""
        last = self.everywhere[-1]
        memory: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        second = replace(last, tokens=slice(0, last.tokens.stop - last.tokens.start))
        return Layout(self.everywhere[:-1], memory=memory), Layout((second,), memory=memory)


class PackedBatch:
    """A padded batch as a row without its pads, on the CPU."""

    def __init__(self, mask_BL: Tensor, nested_BL: Tensor | None) -> None:
        """Find each token's place in the row; `nested_BL` counts a text's slots, in order, -1 is for other tokens."""
        real_BL = mask_BL.cpu().bool()
        columns_T = real_BL.flatten().nonzero()[:, 0]
        self.first_slot = len(columns_T)
        """Place of the first nested slot in the row; its length where there is none."""
        if nested_BL is not None:
            slot_T = nested_BL.cpu().flatten()[columns_T]
            columns_T = torch.cat([columns_T[slot_T < 0], columns_T[slot_T >= 0]])
            self.first_slot = int((slot_T < 0).sum())
        self._columns_T = columns_T
        places_BL = torch.zeros(real_BL.shape, dtype=torch.int64)
        places_BL.view(-1)[columns_T] = torch.arange(len(columns_T))
        first_B1 = places_BL.gather(1, real_BL.int().argmax(dim=1, keepdim=True))
        self.places_BL = torch.where(real_BL, places_BL, first_B1)
        """int64, a token's place in the row; of padding that of a token of the same text, so NaN stays in its text."""

    def row(self, values_BL: Tensor) -> Tensor:
        """Return the tokens' own of `values_BL`, [1, T] on the CPU."""
        return values_BL.cpu().flatten()[self._columns_T][None]

    def layout(self, device: torch.device, *, is_causal: bool, window: int | None) -> Layout:
        """Return which tokens attend to which.

        `window` is how far near layers attend to either side; None without such layers, and for nested slots.
        """
        texts, first = len(self.places_BL), self.first_slot
        owner_T = self._columns_T // self.places_BL.shape[1]
        texts_B = owner_T[:first].bincount(minlength=texts)
        everywhere = _apart(texts_B, device, _CAUSAL if is_causal else _ALL)
        if first == len(owner_T):
            return Layout(everywhere, () if window is None else _apart(texts_B, device, (window, window)))
        assert window is None, "nested slots in a window are computed with pads"
        # Slots attend to their text and the slots up to themselves: causal, where keys are the text and then its slots.
        slots_B = owner_T[first:].bincount(minlength=texts)
        has_slots_B = slots_B > 0
        keys_M = owner_T.argsort(stable=True)
        keys_M = keys_M[has_slots_B[owner_T[keys_M]]]
        queries, keys = Spans.of(slots_B[has_slots_B], device), Spans.of((texts_B + slots_B)[has_slots_B], device)
        slots = Part(slice(first, len(owner_T)), queries, keys, moved(keys_M, device), _CAUSAL)
        return Layout((*everywhere, slots))


def _apart(lengths_B: Tensor, device: torch.device, window: tuple[int, int]) -> tuple[Part, ...]:
    """The tokens at the row's start, of texts that each attend to themselves; none if there are none."""
    lengths_B = lengths_B[lengths_B > 0]
    if len(lengths_B) == 0:
        return ()
    spans = Spans.of(lengths_B, device)
    return (Part(slice(0, int(lengths_B.sum())), spans, spans, None, window),)


# Compiled layers leave it as it is: a graph would be of one layout.
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
    """Attend as an attention function of transformers does; returns [1, T, N, D].

    Without a layout, as in decoding and in passes with padding, a mask is needed. `sliding_window` is None in layers
    that attend to the whole text.
    """
    if packed_layout is None:
        assert attention_mask is not None, "without a layout or a mask all texts would be one"
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
    found = []
    for part in packed_layout.everywhere if sliding_window is None else packed_layout.near:
        keys = part.tokens if part.keys_M is None else part.keys_M
        found.append(_attend(part, query_TND[part.tokens], key_TGD[keys], value_TGD[keys], scaling, dropout))
    # Without a copy where there is one part, as there mostly is.
    return (found[0] if len(found) == 1 else torch.cat(found))[None], None


def _attend(
    part: Part, query_TND: Tensor, key_MGD: Tensor, value_MGD: Tensor, scaling: float | None, dropout: float
) -> Tensor:
    """Return [T, N, D]: by torch's varlen kernel, or else by one call for neighbouring texts of equal length."""
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
    # Slices would each have a gradient as large as the row.
    queries = query_TND.split([group.queries * group.texts for group in part.groups])
    rows = [group.keys * group.texts for group in part.groups]
    found = []
    for group, *heads in zip(part.groups, queries, key_MGD.split(rows), value_MGD.split(rows), strict=True):
        query_BNQD, key_BGKD, value_BGKD = (each.unflatten(0, (group.texts, -1)).transpose(1, 2) for each in heads)
        attended_BNQD = attend(
            query_BNQD,
            key_BGKD,
            value_BGKD,
            attn_mask=group.sees,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=is_grouped,
        )
        found.append(attended_BNQD.transpose(1, 2).flatten(0, 1))
    return torch.cat(found)


def _attend_by_products(
    query_BNQD: Tensor,
    key_BNKD: Tensor,
    value_BNKD: Tensor,
    *,
    attn_mask: Tensor | None,
    scale: float | None,
    **_: Any,
) -> Tensor:
    """Do what `scaled_dot_product_attention` does in bfloat16, text by text, so that a text's scores stay in cache."""
    scaled_BNQD = query_BNQD * (query_BNQD.shape[3] ** -0.5 if scale is None else scale)
    attended_BNQD = torch.empty_like(query_BNQD)
    for text in range(len(query_BNQD)):
        scores_NQK = torch.bmm(scaled_BNQD[text], key_BNKD[text].mT)
        if attn_mask is not None:
            scores_NQK.masked_fill_(~attn_mask, -torch.inf)
        # From 80 keys on oneDNN's takes 0.4 to 1 times as long as torch's, least where they are no multiple of 32.
        weights_NQK = scores_NQK.to_mkldnn().softmax(-1).to_dense()
        torch.bmm(weights_NQK, value_BNKD[text], out=attended_BNQD[text])
    return attended_BNQD


def _window_mask(queries: int, keys: int, window: tuple[int, int], device: torch.device) -> Tensor | None:
    """See `Group.sees`."""
    before, after = (keys - 1 if window[0] < 0 else window[0]), (queries - 1 if window[1] < 0 else window[1])
    if before >= keys - 1 and after >= queries - 1:
        return None
    own = torch.arange(keys - queries, keys, device=device)[:, None]
    ahead = torch.arange(keys, device=device) - own
    return (ahead >= -before) & (ahead <= after)


ALL_ATTENTION_FUNCTIONS.register(KERNEL, packed_attention)

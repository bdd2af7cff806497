"""Texts in one row without pads: where each stands, which tokens each sees, and the attention that keeps them apart.

The models of transformers run such a row as they are: this attention is registered under a name of ours, and a pass
hands it the layout of its texts. There is no mask, whose size would be the square of the row's.

Tokens stand text after text. In a pass with nested slots those that are no slots come first, of all texts, and the
slots after them, so that either part is a slice of the row. Positions are always given, so the order is free.

Legend: B texts, L padded length, T tokens of the row, S of them slots, M tokens that are looked at (one as often as
texts look at it), N attention heads, G heads of keys and values, D size of a head, E one more than there are texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffretriever.backbones.cpu_tuning import attend_by_products, gains_by_products
from diffretriever.backbones.device import has_varlen_kernel, moved

KERNEL = "diffretriever_packed"
"""transformers' name of this attention."""
_ALL, _CAUSAL = (-1, -1), (-1, 0)
# What sizes of a head the kernel takes.
_HEAD_STEP, _LARGEST_HEAD = 8, 256


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
        """Return the spans of texts with so many tokens each, int64 on the CPU."""
        offsets_E = torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)]).int()
        return cls(moved(offsets_E, device), int(lengths_B.max()), lengths_B)


class Group(NamedTuple):
    """Neighbouring texts of equal lengths."""

    queries: int
    """Tokens of each that look."""
    keys: int
    """Tokens of each that they look at."""
    texts: int
    sees: Tensor | None
    """bool [queries, keys], on the backbone's device: which keys each query sees; None: all of them."""


@dataclass(frozen=True)
class Part:
    """A slice of the row, whose tokens look in the same way."""

    tokens: slice
    queries: Spans
    """The tokens that look: at least one of each text."""
    keys: Spans
    """The tokens that they look at, of the same texts."""
    keys_M: Tensor | None
    """int64, on the backbone's device: the places of those; None: they are the tokens that look."""
    window: tuple[int, int]
    """How many tokens before and after itself one sees, -1 for all. A text's last query stands at its last key."""

    @cached_property
    def groups(self) -> list[Group]:
        """The texts by equal lengths, in their order; every layer asks for them."""
        device = self.queries.offsets_E.device
        sizes = zip(self.queries.lengths_B.tolist(), self.keys.lengths_B.tolist(), strict=True)
        return [
            Group(queries, keys, len(list(equal)), _window_mask(queries, keys, self.window, device))
            for (queries, keys), equal in groupby(sizes)
        ]


@dataclass(frozen=True)
class Memory:
    """What a row's first tokens had for keys and values, when they run in a pass before the others."""

    layers: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """[1, G, T, D] twice, by the layer's attention."""

    def followed_by(self, module: nn.Module, key_1GTD: Tensor, value_1GTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the row so far; those of a layer's first call are remembered."""
        if module not in self.layers:
            self.layers[module] = (key_1GTD, value_1GTD)
            return key_1GTD, value_1GTD
        first_key_1GTD, first_value_1GTD = self.layers[module]
        return torch.cat([first_key_1GTD, key_1GTD], dim=2), torch.cat([first_value_1GTD, value_1GTD], dim=2)


@dataclass(frozen=True)
class Layout:
    """Who sees whom, by parts that together are the row, in its order."""

    everywhere: tuple[Part, ...]
    """In layers that see the whole text."""
    near: tuple[Part, ...] = ()
    """In layers that see a window; none for families without such layers."""
    memory: Memory | None = None
    """Of a row that is run in two passes."""

    def in_two(self) -> tuple[Layout, Layout]:
        """Return the layouts of a pass over all but the last part, and of one over that part, which looks back."""
        memory = Memory()
        first = Layout(self.everywhere[:-1], self.near[:-1], memory)
        return first, Layout(_at_start(self.everywhere[-1:]), _at_start(self.near[-1:]), memory)


def _at_start(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(replace(part, tokens=slice(0, part.tokens.stop - part.tokens.start)) for part in parts)


def after_prefix(prefix: int, lengths_B: Tensor, device: torch.device) -> Layout:
    """Return the layout of texts in a causal pass that all continue the same tokens, which a cache holds before them.

    Args:
        prefix: tokens in the cache; may be 0.
        lengths_B: int64 on the CPU, tokens of each text, at least 1.
        device: the backbone's.
    """
    if prefix == 0:
        return Layout(_apart(lengths_B, device, _CAUSAL))
    shared_P, ends_B = torch.arange(prefix), prefix + lengths_B.cumsum(0)
    spans = zip((ends_B - lengths_B).tolist(), ends_B.tolist(), strict=True)
    keys_M = torch.cat([torch.cat([shared_P, torch.arange(start, end)]) for start, end in spans])
    row = slice(0, int(lengths_B.sum()))
    queries, keys = Spans.of(lengths_B, device), Spans.of(prefix + lengths_B, device)
    return Layout((Part(row, queries, keys, moved(keys_M, device), _CAUSAL),))


class PackedBatch:
    """A padded batch as a row without its pads, on the CPU.

    To make all rows equally long, filler can be further texts at the end, whose states nobody reads.
    """

    def __init__(self, mask_BL: Tensor, nested_BL: Tensor | None) -> None:
        """Find each token's place in the row.

        Args:
            mask_BL: 1 or True for a token, 0 or False for a pad.
            nested_BL: which slot of its text a token is, -1 for one that is no slot; None: slots are not nested.

        Raises:
            ValueError: The slots of a text are not in order.
        """
        real_BL = mask_BL.cpu().bool()
        slots_BL = torch.full(real_BL.shape, -1) if nested_BL is None else nested_BL.cpu().long()
        columns_T = real_BL.flatten().nonzero()[:, 0]
        is_slot_T = slots_BL.flatten()[columns_T] >= 0
        self._columns_T = torch.cat([columns_T[~is_slot_T], columns_T[is_slot_T]])
        places_BL = torch.zeros(real_BL.shape, dtype=torch.int64)
        places_BL.view(-1)[self._columns_T] = torch.arange(len(columns_T))
        first_B1 = places_BL.gather(1, real_BL.int().argmax(dim=1, keepdim=True))
        self.places_BL = torch.where(real_BL, places_BL, first_B1)
        """int64, where in the row a token stands; for a pad a token of the same text, whose NaN is no neighbour's."""
        self._real_BL, self._slots_BL = real_BL, slots_BL
        self.first_slot = int((~is_slot_T).sum())
        """Place of the first nested slot in the row; its length where there is none."""
        self._owner_T = self._columns_T // real_BL.shape[1]
        self._slot_T = self.row(slots_BL)[0]
        same_text = self._owner_T[self.first_slot :].diff() == 0
        if (same_text & (self._slot_T[self.first_slot :].diff() <= 0)).any():
            raise ValueError("nested slots must be numbered in the order of a text's tokens.")

    def row(self, values_BL: Tensor) -> Tensor:
        """Return the tokens' own of `values_BL`, [1, T] on the CPU."""
        return values_BL.cpu().flatten()[self._columns_T][None]

    def layout(self, device: torch.device, *, is_causal: bool, window: int | None) -> Layout:
        """Return who sees whom.

        Args:
            device: the backbone's.
            is_causal: whether a token sees only those before it; nested slots then see no less.
            window: how far to either side layers see that do not see the whole text; None: all of them do.
        """
        texts_B = self._owner_T[: self.first_slot].bincount(minlength=len(self._real_BL))
        everywhere = _apart(texts_B, device, _CAUSAL if is_causal else _ALL)
        near = () if window is None else _apart(texts_B, device, (window, window))
        if self.first_slot == len(self._slot_T):
            return Layout(everywhere, near)
        everywhere += (self._slots_far(texts_B, device),)
        if window is not None:
            near += (self._slots_near(window, device),)
        return Layout(everywhere, near)

    def _slots_far(self, texts_B: Tensor, device: torch.device) -> Part:
        """Slots see their text and the slots up to themselves: causal, where keys are the text and then its slots."""
        slots_B = self._owner_T[self.first_slot :].bincount(minlength=len(self._real_BL))
        has_slots_B = slots_B > 0
        keys_M = self._owner_T.argsort(stable=True)
        keys_M = keys_M[has_slots_B[self._owner_T[keys_M]]]
        queries = Spans.of(slots_B[has_slots_B], device)
        keys = Spans.of((texts_B + slots_B)[has_slots_B], device)
        return Part(self._slots, queries, keys, moved(keys_M, device), _CAUSAL)

    def _slots_near(self, window: int, device: torch.device) -> Part:
        """In a window each slot sees tokens of its own, which no two ends bound: each is a text by itself."""
        place_T = self.row(nested_places(self._slots_BL, self._real_BL))[0]
        keys, seen = [], []
        for owner in self._owner_T[self._slots].unique_consecutive():
            own_M = (self._owner_T == owner).nonzero()[:, 0]
            slots_S = own_M[own_M >= self.first_slot]
            distance_SM = (place_T[own_M] - place_T[slots_S, None]).abs()
            sees_SM = (distance_SM <= window) & (self._slot_T[own_M] <= self._slot_T[slots_S, None])
            keys.append(own_M.expand(sees_SM.shape)[sees_SM])
            seen.append(sees_SM.sum(1))
        seen_S = torch.cat(seen)
        queries, spans = Spans.of(torch.ones_like(seen_S), device), Spans.of(seen_S, device)
        return Part(self._slots, queries, spans, moved(torch.cat(keys), device), _ALL)

    @property
    def _slots(self) -> slice:
        return slice(self.first_slot, len(self._slot_T))


def nested_places(slots_BL: Tensor, real_BL: Tensor) -> Tensor:
    """Return where tokens stand for a window in a pass with nested slots, int64 [B, L].

    What follows the slots stands where it would without them: it must not move with their number.
    """
    is_slot_BL = slots_BL >= 0
    return (real_BL & ~is_slot_BL).cumsum(dim=1) + torch.where(is_slot_BL, slots_BL, -1)


def _apart(lengths_B: Tensor, device: torch.device, window: tuple[int, int]) -> tuple[Part, ...]:
    """The tokens at the row's start, of texts that each see themselves; none if there are none."""
    lengths_B = lengths_B[lengths_B > 0]
    if len(lengths_B) == 0:
        return ()
    spans = Spans.of(lengths_B, device)
    return (Part(slice(0, int(lengths_B.sum())), spans, spans, None, window),)


# Compiled layers leave it as it is: a graph would be of one layout.
@torch.compiler.disable
def packed_attention(  # noqa: PLR0913 (what transformers hands over)
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
    """Attend as transformers asks of an attention function; returns [1, T, N, D].

    Without a layout, as in the steps of decoding, a mask says who sees whom.

    Args:
        module: The layer's attention.
        query_1NTD: floating.
        key_1GTD: floating; T of what the cache holds before the row, too.
        value_1GTD: likewise.
        attention_mask: None with a layout.
        packed_layout: of the row.
        scaling: of the products.
        dropout: probability.
        sliding_window: None in layers that see the whole text.
    """
    if packed_layout is None:
        assert attention_mask is not None, "without a layout or a mask all texts would be one"
        return sdpa_attention_forward(
            module, query_1NTD, key_1GTD, value_1GTD, attention_mask, dropout=dropout, scaling=scaling
        )
    if packed_layout.memory is not None:
        key_1GTD, value_1GTD = packed_layout.memory.followed_by(module, key_1GTD, value_1GTD)
    query_TND, key_TGD, value_TGD = (tensor[0].transpose(0, 1) for tensor in (query_1NTD, key_1GTD, value_1GTD))
    found = []
    for part in packed_layout.everywhere if sliding_window is None else packed_layout.near:
        keys = part.tokens if part.keys_M is None else part.keys_M
        found.append(_attend(part, query_TND[part.tokens], key_TGD[keys], value_TGD[keys], scaling, dropout))
    # Without a copy where there is one part, as there mostly is.
    return (found[0] if len(found) == 1 else torch.cat(found))[None], None


def _attend(
    part: Part, query_TND: Tensor, key_MGD: Tensor, value_MGD: Tensor, scaling: float | None, dropout: float
) -> Tensor:
    head = query_TND.shape[-1]
    fits = head % _HEAD_STEP == 0 and head <= _LARGEST_HEAD and dropout == 0
    if not fits or not _has_kernel(query_TND.device, query_TND.dtype):
        return attend_text_by_text(part, query_TND, key_MGD, value_MGD, scaling, dropout)
    found = varlen_attn(
        query_TND,
        key_MGD,
        value_MGD,
        part.queries.offsets_E,
        part.keys.offsets_E,
        part.queries.longest,
        part.keys.longest,
        scale=scaling,
        window_size=part.window,
        enable_gqa=query_TND.shape[1] != key_MGD.shape[1],
    )
    assert isinstance(found, Tensor), "no other results were asked for"
    return found


@torch.compiler.assume_constant_result
def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """As a compiled model takes it: asked once, not in its graph."""
    return has_varlen_kernel(device, dtype)


def attend_text_by_text(
    part: Part, query_TND: Tensor, key_MGD: Tensor, value_MGD: Tensor, scaling: float | None, dropout: float
) -> Tensor:
    """Return what torch's kernel for texts of any lengths does, [T, N, D], by one call for neighbours of equal length.

    Args:
        part: who sees whom.
        query_TND: floating, of the tokens that look.
        key_MGD: floating, of the tokens that they look at.
        value_MGD: likewise.
        scaling: of the products; None: 1 / √D.
        dropout: probability.
    """
    gains = gains_by_products(query_TND, key_MGD, part.keys.longest, dropout)
    attend = attend_by_products if gains else scaled_dot_product_attention
    # Slices would each have a gradient as large as the row.
    queries_of = query_TND.split([group.queries * group.texts for group in part.groups])
    keys_of, values_of = (
        row.split([group.keys * group.texts for group in part.groups]) for row in (key_MGD, value_MGD)
    )
    found = []
    for group, own_query, own_key, own_value in zip(part.groups, queries_of, keys_of, values_of, strict=True):
        attended_BNQD = attend(
            _split(own_query, group.texts),
            _split(own_key, group.texts),
            _split(own_value, group.texts),
            attn_mask=group.sees,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query_TND.shape[1] != key_MGD.shape[1],
        )
        found.append(attended_BNQD.transpose(1, 2).flatten(0, 1))
    return torch.cat(found)


def _split(values_TND: Tensor, texts: int) -> Tensor:
    return values_TND.unflatten(0, (texts, -1)).transpose(1, 2)


def _window_mask(queries: int, keys: int, window: tuple[int, int], device: torch.device) -> Tensor | None:
    """See `Group.sees`."""
    before, after = (every if size < 0 else size for size, every in zip(window, (keys - 1, queries - 1), strict=True))
    if before >= keys - 1 and after >= queries - 1:
        return None
    own = torch.arange(keys - queries, keys, device=device)[:, None]
    ahead = torch.arange(keys, device=device) - own
    return (ahead >= -before) & (ahead <= after)


ALL_ATTENTION_FUNCTIONS.register(KERNEL, packed_attention)

"""Trained tensors for slots: embeddings, a map to the output head, maps to vectors, weights of words.

They are part of the backbone's module, as LoRA's are. On disk they have a file next to an adapter's two files.

Legend: B batch, L padded length, P positions read, K slots read, H hidden size, S slots that have a vector, V
vocabulary.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffretriever.backbones.checkpoint import read_tensors, tensor_shapes
from diffretriever.backbones.device import moved

SLOTS_FILE = "slots.safetensors"
MODULE = "slot_layers"
"""Name of the layers in the backbone's module."""
TENSORS = ("embeddings", "token_head", "residual", "attention", "word_weights")
"""Names of the tensors in the file, in the order in which `SlotLayers` takes them."""


class SlotLayers(nn.Module):
    """Trained tensors, float32 whatever the backbone's precision; any may be missing."""

    def __init__(
        self,
        embeddings_SH: Tensor | None = None,
        token_head_HH: Tensor | None = None,
        residual_HH: Tensor | None = None,
        attention_HH: Tensor | None = None,
        word_weights_V: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = None if embeddings_SH is None else nn.Parameter(embeddings_SH)
        """[S, H]: row i is added to the input embedding at every text's slot i."""
        self.token_head = None if token_head_HH is None else nn.Parameter(token_head_HH)
        """[H, H]: the output head reads state + token_head state."""
        self.residual = None if residual_HH is None else nn.Parameter(residual_HH)
        """[H, H], R of `vectors`."""
        self.attention = None if attention_HH is None else nn.Parameter(attention_HH)
        """[H, H], A of `vectors`."""
        self.word_weights = word_weights_V
        """[V], on the CPU and not trained: what the impacts of a word are multiplied with, in queries and passages."""

    @property
    def slots(self) -> int | None:
        """Most slots a text can have; None if they have no vectors of their own."""
        return None if self.embeddings is None else len(self.embeddings)

    def embedded(self, embedded_BLH: Tensor, slots_BL: Tensor) -> Tensor:
        """Return input embeddings with each slot's vector added; `slots_BL` counts a text's slots, -1 is for text."""
        assert self.embeddings is not None, "there is something to add"
        slots_BL = moved(slots_BL, embedded_BLH.device)
        added_BLH = self.embeddings[slots_BL.clamp(min=0)].masked_fill(slots_BL[..., None] < 0, 0)
        return embedded_BLH + added_BLH.to(embedded_BLH.dtype)

    def check(self, slots_BL: Tensor) -> None:
        """Raise `ValueError` if a text has more slots than there are vectors; values on a GPU are not checked."""
        if self.slots is None or slots_BL.device.type != "cpu" or (most := int(slots_BL.max()) + 1) <= self.slots:
            return
        raise ValueError(
            f"a text with {most} slots, but the adapter was trained with {self.slots} vectors: take a smaller budget"
        )

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return the states that the output head is given."""
        if self.token_head is None:
            return hidden_BPH
        return hidden_BPH + hidden_BPH @ self.token_head.to(hidden_BPH.dtype).T

    def vectors(self, hidden_BKH: Tensor, states_BLH: Tensor, own_BL: Tensor, parts_BKL: Tensor) -> Tensor:
        """Return slots' vectors, float32 [B, K, H], of any length: the mean of the text's states, and R p.

        p is the mean of the states of the slot's part, weighted by softmax(h A x / √H) for the slot's state h and each
        state x. Without A it is the plain mean, without R it is added as it is. `own_BL` marks the text's tokens,
        `parts_BKL` those of each slot's part.
        """
        states_BLH = states_BLH.float()
        if self.attention is None:
            pooled_BKH = parts_BKL.float() @ states_BLH / parts_BKL.sum(-1, keepdim=True).clamp(min=1)
        else:
            weights_BKL = hidden_BKH.float() @ self.attention @ states_BLH.mT / math.sqrt(states_BLH.shape[-1])
            weights_BKL = weights_BKL.masked_fill(~parts_BKL, torch.finfo(torch.float32).min).softmax(-1)
            # A text without tokens has empty parts.
            pooled_BKH = weights_BKL.masked_fill(~parts_BKL, 0) @ states_BLH
        if self.residual is not None:
            pooled_BKH = pooled_BKH @ self.residual.T
        return mean_state(states_BLH, own_BL)[:, None] + pooled_BKH

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in the file, on the CPU."""
        found = {name: parameter.detach().cpu().contiguous() for name, parameter in self.named_parameters()}
        return found if self.word_weights is None else {**found, "word_weights": self.word_weights}


def mean_state(states_BLH: Tensor, own_BL: Tensor) -> Tensor:
    """Return float32 [B, H]: the mean of each text's states at tokens `own_BL`; zero for a text without any."""
    weights_BL1 = moved(own_BL[..., None], states_BLH.device, torch.float32)
    return (states_BLH.float() * weights_BL1).sum(1) / weights_BL1.sum(1).clamp(min=1)


def parts_of(own_BL: Tensor, slots_B: Tensor, most: int) -> Tensor:
    """Return bool [B, K, L]: the tokens of each slot's part; a text with n slots is split into n equal parts, in order.

    `own_BL` marks the tokens of the text, `slots_B` int64 on the same device counts its slots, K is `most`. A text with
    fewer tokens than slots has tokens in several parts. Slots beyond a text's own have its last part.
    """
    tokens_B1, slots_B1 = own_BL.sum(1, keepdim=True), slots_B[:, None]
    index_BK = torch.arange(most, device=own_BL.device).minimum(slots_B1 - 1)
    first_BK = index_BK * tokens_B1 // slots_B1
    end_BK = ((index_BK + 1) * tokens_B1 // slots_B1).maximum(first_BK + 1)
    place_B1L = (own_BL.cumsum(1) - 1)[:, None]
    return own_BL[:, None] & (place_B1L >= first_BK[..., None]) & (place_B1L < end_BK[..., None])


def read_slot_layers(folder: Path, hidden_size: int, vocab_size: int) -> SlotLayers | None:
    """Return the slot layers of the adapter in `folder`, or None; `ValueError` if they do not fit these sizes."""
    file = folder / SLOTS_FILE
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    if unknown := tensors.keys() - {*TENSORS}:
        raise ValueError(f"{file}: tensor '{min(unknown)}' is not known, only {', '.join(TENSORS)} are.")
    for name, tensor in tensors.items():
        height = hidden_size if name != "embeddings" else tensor.shape[0] if tensor.ndim else 0
        if tuple(tensor.shape) != ((vocab_size,) if name == "word_weights" else (height, hidden_size)):
            raise ValueError(
                f"{file}: tensor '{name}' has shape {list(tensor.shape)}, the backbone has {hidden_size} dimensions "
                f"and {vocab_size:,} tokens. Is it an adapter for this backbone?"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{file}: tensor '{name}' has values that are not finite.")
    if "attention" in tensors and "residual" not in tensors:
        raise ValueError(f"{file}: tensor 'attention' has no 'residual' beside it: copy the adapter again.")
    return SlotLayers(*(tensors[name].float() if name in tensors else None for name in TENSORS))


def most_slots(folder: Path) -> int | None:
    """Return the most slots that the adapter in `folder` has vectors for, from the file's header; None: any number."""
    file = folder / SLOTS_FILE
    shape = tensor_shapes(file).get("embeddings") if file.is_file() else None
    return shape[0] if shape else None


def attach_slot_layers(model: Any, layers: SlotLayers) -> None:
    """Make the layers part of a backbone's module, on its device."""
    assert not hasattr(model, MODULE), "slot layers are attached once"
    model.add_module(MODULE, layers.to(model.device))

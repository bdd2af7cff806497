"""Trained tensors of slots, which are part of the backbone's module and saved in an adapter's folder.

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
from diffretriever.backbones.device import to_device

SLOTS_FILE = "slots.safetensors"
MODULE = "slot_layers"
"""Name of the layers in the backbone's module."""
TENSORS = ("embeddings", "token_head", "residual", "attention", "word_weights")
"""Names of the tensors in the file, in the order of `SlotLayers`' arguments."""


class SlotLayers(nn.Module):
    """Trained tensors of slots, always float32; each is optional."""

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
        """[S, H]: row i is added to the input embedding of slot i."""
        self.token_head = None if token_head_HH is None else nn.Parameter(token_head_HH)
        """[H, H]: the output head's input is state + token_head · state."""
        self.residual = None if residual_HH is None else nn.Parameter(residual_HH)
        """[H, H], R of `vectors`."""
        self.attention = None if attention_HH is None else nn.Parameter(attention_HH)
        """[H, H], A of `vectors`."""
        self.word_weights = word_weights_V
        """[V], on the CPU and not trained: factors of the impacts of queries and passages."""

    @property
    def slots(self) -> int | None:
        """Maximum number of slots of a text; None: no limit."""
        return None if self.embeddings is None else len(self.embeddings)

    def embedded(self, embedded_BLH: Tensor, slots_BL: Tensor) -> Tensor:
        """Add the slot embeddings to input embeddings; `slots_BL` has the index of each slot, -1 for text."""
        assert self.embeddings is not None, "these layers have no slot embeddings"
        slots_BL = to_device(slots_BL, embedded_BLH.device)
        added_BLH = self.embeddings[slots_BL.clamp(min=0)].masked_fill(slots_BL[..., None] < 0, 0)
        return embedded_BLH + added_BLH.to(embedded_BLH.dtype)

    def check(self, slots_BL: Tensor) -> None:
        """Raise ValueError if a text has too many slots. Values on a GPU are not checked."""
        if self.slots is None or slots_BL.device.type != "cpu" or (slots := int(slots_BL.max()) + 1) <= self.slots:
            return
        raise ValueError(
            f"a text with {slots} slots, but the adapter was trained with {self.slots} vectors: set a smaller budget"
        )

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return the output head's input."""
        if self.token_head is None:
            return hidden_BPH
        return hidden_BPH + hidden_BPH @ self.token_head.to(hidden_BPH.dtype).T

    def vectors(self, hidden_BKH: Tensor, states_BLH: Tensor, is_text_BL: Tensor, parts_BKL: Tensor) -> Tensor:
        """Return the unnormalised vectors of slots, mean + R p, float32 [B, K, H].

        mean is that of the states of the text (`is_text_BL`). p is the mean over the slot's part of the text
        (`parts_BKL`), weighted by softmax(h A x / √H) for the slot's state h and each state x. Without A, weights are
        equal. Without R, the result is mean + p.
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
        return mean_state(states_BLH, is_text_BL)[:, None] + pooled_BKH

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in the file, on the CPU."""
        trained = {name: parameter.detach().cpu().contiguous() for name, parameter in self.named_parameters()}
        return trained if self.word_weights is None else {**trained, "word_weights": self.word_weights}


def mean_state(states_BLH: Tensor, is_text_BL: Tensor) -> Tensor:
    """Return the mean of each text's states at tokens `is_text_BL`, float32 [B, H]; zero if it has none."""
    weights_BL1 = to_device(is_text_BL[..., None], states_BLH.device, torch.float32)
    return (states_BLH.float() * weights_BL1).sum(1) / weights_BL1.sum(1).clamp(min=1)


def split_into_parts(is_text_BL: Tensor, slots_B: Tensor, max_slots: int) -> Tensor:
    """Split each text into as many consecutive parts as it has slots, and return the parts' masks, bool [B, K, L].

    `slots_B` (int64, same device) is the number of slots, K is `max_slots`. Parts overlap if there are fewer tokens
    than slots. Missing slots have the last part.
    """
    tokens_B1, slots_B1 = is_text_BL.sum(1, keepdim=True), slots_B[:, None]
    index_BK = torch.arange(max_slots, device=is_text_BL.device).minimum(slots_B1 - 1)
    first_BK = index_BK * tokens_B1 // slots_B1
    end_BK = ((index_BK + 1) * tokens_B1 // slots_B1).maximum(first_BK + 1)
    index_B1L = (is_text_BL.cumsum(1) - 1)[:, None]
    return is_text_BL[:, None] & (index_B1L >= first_BK[..., None]) & (index_B1L < end_BK[..., None])


def read_slot_layers(folder: Path, hidden_size: int, vocab_size: int) -> SlotLayers | None:
    """Return the slot layers of the adapter in `folder`, if any. Raises ValueError if they do not fit the sizes."""
    file = folder / SLOTS_FILE
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    if unknown := tensors.keys() - {*TENSORS}:
        raise ValueError(f"{file}: unknown tensor '{min(unknown)}': only {', '.join(TENSORS)} are supported")
    for name, tensor in tensors.items():
        height = hidden_size if name != "embeddings" else tensor.shape[0] if tensor.ndim else 0
        if tuple(tensor.shape) != ((vocab_size,) if name == "word_weights" else (height, hidden_size)):
            raise ValueError(
                f"{file}: tensor '{name}' has shape {list(tensor.shape)}, the backbone has {hidden_size} dimensions "
                f"and {vocab_size:,} tokens: use an adapter for this backbone"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{file}: tensor '{name}' has values that are not finite")
    if "attention" in tensors and "residual" not in tensors:
        raise ValueError(f"{file}: tensor 'attention' needs 'residual', which is missing: copy the adapter again")
    return SlotLayers(*(tensors[name].float() if name in tensors else None for name in TENSORS))


def read_max_slots(folder: Path) -> int | None:
    """Return the maximum number of slots of the adapter in `folder`; None: no limit."""
    file = folder / SLOTS_FILE
    shape = tensor_shapes(file).get("embeddings") if file.is_file() else None
    return shape[0] if shape else None


def attach_slot_layers(model: Any, layers: SlotLayers) -> None:
    """Add the layers to a backbone's module, on its device."""
    assert not hasattr(model, MODULE), "slot layers are attached once"
    model.add_module(MODULE, layers.to(model.device))

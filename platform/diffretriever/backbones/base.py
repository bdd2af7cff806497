"""The contract of every backbone: final hidden states at chosen positions, and the logits of chosen tokens there.

Only logits that are asked for are computed: in a vocabulary of 150,000 all of them cost more than the slots do.

Legend: B batch, L padded length, P positions read in a row, H hidden size, V vocabulary, T chosen tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.device import resolve_attention
from diffretriever.backbones.published import Published
from diffretriever.backbones.slot_layers import MODULE, SlotLayers
from diffretriever.backbones.vocabulary import Vocabulary
from diffretriever.backbones.weights import load_model


class BackboneOutput(NamedTuple):
    """What one pass gives at the positions asked for, in the backbone's dtype and on its device."""

    hidden: Tensor
    """[B, P, H]: hidden states after the final norm, that is, what the output head reads."""
    logits: Tensor
    """[B, P, V], or [B, P, T] where token ids were given."""


class Backbone(ABC):
    """Weights that turn token ids into hidden states and logits, the same for a text in any batch.

    A family is a subclass in a file of its own, and a line in `diffretriever.backbones.FAMILIES`.
    """

    family: ClassVar[str]
    """`model_type` of the checkpoints it reads."""
    is_causal: ClassVar[bool]
    """Whether a position sees only those before it."""
    turn_end: ClassVar[str]
    """The token that closes a turn of the family's chat template."""
    vocabulary_class: ClassVar[type[Vocabulary]] = Vocabulary
    fields: ClassVar[ConfigFields]
    """What is understood of config.json."""
    ignored_tensors: ClassVar[str]
    """Pattern of tensors in a checkpoint that the model has no use for."""
    lora_targets: ClassVar[tuple[str, ...]]
    """Ends of the names, as transformers spells them, of every matrix in a layer: attention's and feed-forward's."""
    prefers_flash: ClassVar[bool] = True
    """Whether flash attention is taken where it can run. It forbids positions of the caller's own."""
    published: ClassVar[Published]
    """How its public checkpoints look, for random ones."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model = model
        """The transformers module. PEFT adapts it in place, and `forward` then runs with the adapter."""
        self.weights_digest: str = checkpoint.digest()
        self.hidden_size: int = model.config.hidden_size
        self.vocab_size: int = model.config.vocab_size
        self.vocabulary = self.vocabulary_class(checkpoint.folder, checkpoint.config, self.turn_end)
        self.max_length: int = self.vocabulary.max_length

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        attention: str,
        accepted_fields: Collection[str] = (),
    ) -> Self:
        """Check the checkpoint against what this family understands, and load it in evaluation mode.

        Args:
            checkpoint: What to load.
            dtype: Precision of the weights and of all results.
            device: Where to compute.
            attention: A name that `device.resolve_attention` knows.
            accepted_fields: Unknown fields of the config to take as having no effect.

        Raises:
            ValueError: A config field or tensor is unknown, missing or of the wrong kind.
        """
        cls.fields.check(checkpoint.config, checkpoint.config_file, accepted_fields)
        model = load_model(
            cls.model_class(checkpoint),
            cls.model_config(checkpoint),
            checkpoint,
            checkpoint_name=lambda name: cls.checkpoint_name(name, checkpoint),
            ignored=cls.ignored_tensors,
            dtype=dtype,
            attention=resolve_attention(attention, device, dtype, prefer_flash=cls.prefers_flash),
        )
        cls.check_loaded(model, checkpoint)
        return cls(model.to(device), checkpoint)

    @classmethod
    @abstractmethod
    def model_class(cls, checkpoint: Checkpoint) -> Any:
        """Return the transformers class that computes this family."""

    @classmethod
    @abstractmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return that class's config for a checkpoint whose fields passed the check."""

    @classmethod
    def checkpoint_name(cls, name: str, checkpoint: Checkpoint) -> str:
        """Return the checkpoint's name of the model's tensor `name`."""
        return name

    @classmethod
    @abstractmethod
    def check_loaded(cls, model: Any, checkpoint: Checkpoint) -> None:
        """Hold the loaded module against the checkpoint where a load can go wrong silently.

        Raises:
            ValueError: They differ.
        """

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return what the output projection reads: the hidden states, unless the family transforms them."""
        return hidden_BPH

    def nested_attention(self, slots_BL: Tensor, real_BL: Tensor) -> Any:
        """Return the attention mask of a pass with nested slots, as the transformers module takes it.

        Args:
            slots_BL: as `nested_mask` takes it, on the backbone's device.
            real_BL: bool, False at pads, likewise.
        """
        return nested_mask(slots_BL, real_BL, self.dtype)

    @property
    def slot_layers(self) -> SlotLayers | None:
        """What an adapter brought for slots, or None."""
        return getattr(self.model, MODULE, None)

    @property
    def output_projection(self) -> nn.Module:
        """The module from `head_input` to V logits: the input embeddings where the checkpoint has no head."""
        projection: nn.Module | None = self.model.get_output_embeddings()
        if projection is not None:
            return projection
        with torch.device("meta"):
            tied = nn.Linear(self.hidden_size, self.vocab_size, bias=False)
        tied.weight = self.model.get_input_embeddings().weight
        return tied

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights and of all results."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        positions: Tensor,
        token_ids: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        slots: Tensor | None = None,
        nested: bool = False,
    ) -> BackboneOutput:
        """Run the model once and read it at chosen positions. Gradients flow unless the caller forbids them.

        Args:
            input_ids: [B, L], integer token ids, padded left or right.
            attention_mask: [B, L], 1 or True for a token, 0 or False for a pad. Pads are never attended.
            positions: [B, P], columns of `input_ids` to read, row by row. What is read at a pad means nothing.
            token_ids: None for the logits of the whole vocabulary; [T] for those of the same tokens in every
                row; [B, T] for each row's own. T may be 0: no logits are computed.
            position_ids: [B, L], position of each token, if not its count of tokens before it in the row.
            slots: [B, L], which slot of its text a token is, from 0 on, -1 for one that is no slot. None: nothing in
                this pass depends on it.
            nested: Slot i sees the slots up to itself, and what is no slot sees none, so that the states of the first
                slots do not depend on how many follow. Needs `slots`; and a backbone that is not causal.

        Raises:
            ValueError: Shapes do not fit each other; a text has more slots than the adapter has vectors for; nested
                slots without `slots`, on a causal backbone or under flash attention; or, for tensors on the CPU (a
                look at values on a GPU would stall it), a value is out of range or a row has no token.
        """
        check_inputs(
            input_ids,
            attention_mask,
            positions,
            token_ids,
            position_ids,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
        )
        self._check_attention(position_ids, slots, nested=nested)
        hidden_BLH = self._hidden_states(input_ids, attention_mask, position_ids, slots, nested=nested)
        index_BPH = positions.to(self.device, torch.long).unsqueeze(-1).expand(-1, -1, self.hidden_size)
        hidden_BPH = hidden_BLH.gather(1, index_BPH)
        return BackboneOutput(hidden_BPH, self._logits(hidden_BPH, token_ids))

    def _check_attention(self, position_ids_BL: Tensor | None, slots_BL: Tensor | None, *, nested: bool) -> None:
        if nested and slots_BL is None:
            raise ValueError("nested slots need `slots`, which say where they are.")
        if nested and self.is_causal:
            raise ValueError(f"family '{self.family}' is causal, where every slot sees those before it: not nested.")
        kernel = self.model.config._attn_implementation  # noqa: SLF001 (no public name)
        if kernel == "flash_attention_2" and (nested or position_ids_BL is not None):
            what = "nested slots" if nested else "position_ids"
            raise ValueError(f"{what} do not work with flash attention: load with attention='sdpa'.")

    def _hidden_states(
        self,
        input_ids_BL: Tensor,
        mask_BL: Tensor,
        position_ids_BL: Tensor | None,
        slots_BL: Tensor | None,
        *,
        nested: bool,
    ) -> Tensor:
        is_padded = not bool(mask_BL.all())
        if is_padded and position_ids_BL is None:
            position_ids_BL = default_position_ids(mask_BL)
        real_BL = mask_BL.to(self.device, torch.bool)
        attention_mask: Any = None
        if nested and slots_BL is not None:
            attention_mask = self.nested_attention(slots_BL.to(self.device), real_BL)
        elif position_ids_BL is not None:
            # No mask is the faster path. With positions of the caller's own one is always given: without it
            # transformers would take a jump in the positions for the border of a packed sequence.
            attention_mask = real_BL
        output = self.model.base_model(
            **self._inputs(input_ids_BL.to(self.device, torch.long), slots_BL),
            attention_mask=attention_mask,
            position_ids=None if position_ids_BL is None else position_ids_BL.to(self.device, torch.long),
            use_cache=False,
        )
        hidden_BLH: Tensor = output.last_hidden_state
        return hidden_BLH

    def _inputs(self, input_ids_BL: Tensor, slots_BL: Tensor | None) -> dict[str, Tensor]:
        layers = self.slot_layers
        if layers is None or layers.embeddings is None or slots_BL is None:
            return {"input_ids": input_ids_BL}
        embedded_BLH = self.model.get_input_embeddings()(input_ids_BL)
        return {"inputs_embeds": layers.embedded(embedded_BLH, slots_BL)}

    def _logits(self, hidden_BPH: Tensor, token_ids: Tensor | None) -> Tensor:
        if token_ids is not None and token_ids.shape[-1] == 0:
            return hidden_BPH.new_empty(*hidden_BPH.shape[:2], 0)
        if self.slot_layers is not None:
            hidden_BPH = self.slot_layers.head_input(hidden_BPH)
        states_BPH = self.head_input(hidden_BPH)
        if token_ids is None:
            logits_BPV: Tensor = self.output_projection(states_BPH)
            return logits_BPV
        return chosen_logits(self.output_projection, states_BPH, token_ids.to(self.device, torch.long))


def chosen_logits(projection: nn.Module, states_BPH: Tensor, token_ids: Tensor) -> Tensor:
    """Return the logits [B, P, T] of tokens `token_ids`, [T] for all rows alike or [B, T].

    Only the rows of the projection that are asked for are multiplied.
    """
    batch, positions, _ = states_BPH.shape
    if not isinstance(projection, nn.Linear):
        # An adapter sits on the head: the rows of its weight are not all it computes.
        index_BPT = token_ids.expand(batch, -1).unsqueeze(1).expand(-1, positions, -1)
        adapted_BPV: Tensor = projection(states_BPH)
        return adapted_BPV.gather(-1, index_BPT)
    logits_BPT = states_BPH @ projection.weight[token_ids].transpose(-1, -2)
    if projection.bias is None:
        return logits_BPT
    return logits_BPT + projection.bias[token_ids].expand(batch, -1).unsqueeze(1)


def default_position_ids(mask_BL: Tensor) -> Tensor:
    """Return each token's count of tokens before it in its row: the side of the pads does not matter."""
    return (mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)


def nested_mask(slots_BL: Tensor, real_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores, [B, 1, L, L], so that slots are nested.

    Args:
        slots_BL: which slot of its text a token is, from 0 on; -1 for one that is no slot.
        real_BL: bool, False at pads.
        dtype: of the attention scores.
    """
    # What is no slot counts as before the first one.
    sees_BLL = (slots_BL[:, :, None] >= slots_BL[:, None, :]) & real_BL[:, None, :]
    return torch.zeros_like(sees_BLL, dtype=dtype).masked_fill_(~sees_BLL, torch.finfo(dtype).min)[:, None]


def check_inputs(
    input_ids_BL: Tensor,
    mask_BL: Tensor,
    positions_BP: Tensor,
    token_ids: Tensor | None,
    position_ids_BL: Tensor | None,
    *,
    vocab_size: int,
    max_length: int,
) -> None:
    """Check the tensors that `Backbone.forward` is given against each other and against the backbone.

    Args:
        input_ids_BL: its `input_ids`.
        mask_BL: its `attention_mask`.
        positions_BP: its `positions`.
        token_ids: [T], [B, T] or None.
        position_ids_BL: its `position_ids`.
        vocab_size: V.
        max_length: most tokens of a row, and the end of position ids.

    Raises:
        ValueError: Shapes do not fit or, on the CPU, values are out of range.
    """
    if input_ids_BL.ndim != 2 or 0 in input_ids_BL.shape:
        raise ValueError(f"input_ids must be [B, L] with at least one token, not {_shape(input_ids_BL)}.")
    batch, length = input_ids_BL.shape
    if mask_BL.shape != (batch, length):
        raise ValueError(f"attention_mask is {_shape(mask_BL)}; input_ids are {[batch, length]}.")
    if positions_BP.ndim != 2 or positions_BP.shape[0] != batch:
        raise ValueError(f"positions must be [B, P] with B = {batch}, not {_shape(positions_BP)}.")
    _check_integers(input_ids_BL, "input_ids", vocab_size)
    _check_integers(mask_BL, "attention_mask", 2)
    _check_integers(positions_BP, "positions", length)
    _check_lengths(mask_BL, max_length)
    if token_ids is not None:
        if token_ids.ndim not in (1, 2) or (token_ids.ndim == 2 and token_ids.shape[0] != batch):
            raise ValueError(f"token_ids must be [T] or [B, T] with B = {batch}, not {_shape(token_ids)}.")
        _check_integers(token_ids, "token_ids", vocab_size)
    if position_ids_BL is not None:
        if position_ids_BL.shape != (batch, length):
            raise ValueError(f"position_ids are {_shape(position_ids_BL)}; input_ids are {[batch, length]}.")
        _check_integers(position_ids_BL, "position_ids", max_length)


def _check_integers(tensor: Tensor, name: str, end: int) -> None:
    if tensor.is_floating_point():
        raise ValueError(f"{name} must hold integers, not {tensor.dtype}.")
    if tensor.numel() == 0 or tensor.device.type != "cpu":
        return
    low, high = int(tensor.min()), int(tensor.max())
    if low < 0 or high >= end:
        raise ValueError(f"{name} must lie in [0, {end}), found {low} to {high}.")


def _check_lengths(mask_BL: Tensor, max_length: int) -> None:
    if mask_BL.device.type != "cpu":
        return
    lengths_B = mask_BL.sum(dim=1)
    if int(lengths_B.min()) < 1:
        raise ValueError("attention_mask has a row without a token.")
    if int(lengths_B.max()) > max_length:
        raise ValueError(f"a row has {int(lengths_B.max())} tokens; this backbone takes {max_length}: truncate it.")


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def pad_right(rows: Sequence[np.ndarray], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 [B, L] with `fill` after each row's end, and the mask int64 [B, L] of real entries."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    mask_BL = (torch.arange(width)[None, :] < lengths[:, None]).long()
    ids_BL = torch.full((len(rows), width), fill, dtype=torch.int64)
    if width:
        ids_BL[mask_BL.bool()] = torch.from_numpy(np.concatenate(rows)).long()
    return ids_BL, mask_BL

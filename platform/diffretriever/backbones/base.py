"""The contract of every backbone: final hidden states at chosen positions, and the logits of chosen tokens there.

Only logits that are asked for are computed: in a vocabulary of 150,000 all of them cost more than the slots do.

Legend: B batch, L padded length, P positions read in a row, H hidden size, V vocabulary, T chosen tokens, M vectors,
N dimensions that the final norm does not switch off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.cpu_tuning import keep_freed_memory
from diffretriever.backbones.device import moved
from diffretriever.backbones.graphs import PassGraphs, Shape
from diffretriever.backbones.inputs import PassInputs, check_inputs
from diffretriever.backbones.linear import SlotAdapter, block_weights
from diffretriever.backbones.logits import as_states, chosen_logits
from diffretriever.backbones.packed import KERNEL, PackedBatch
from diffretriever.backbones.slot_layers import MODULE, SlotLayers
from diffretriever.backbones.vocabulary import Vocabulary

TEXTS_APART = 128
"""Tokens from which on texts run before their slots, if an adapter changes slots alone: faster then (CPU, measured)."""


class BackboneOutput(NamedTuple):
    """The result of a pass at the requested positions, in the backbone's dtype and on its device."""

    hidden: Tensor
    """[B, P, H]: hidden states after the final norm."""
    logits: Tensor
    """[B, P, V], or [B, P, T] where token ids were given; P is less where fewer positions were asked for."""


class Backbone(ABC):
    """Weights that turn token ids into hidden states and logits, the same for a text in any batch."""

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

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model = model
        """The transformers module. PEFT adapts it in place, and `forward` then runs with the adapter."""
        self.weights_digest: str = checkpoint.digest()
        self.precision: str = str(self.dtype).removeprefix("torch.")
        """That of the layers' products, as a retriever's `backbone.dtype` names it."""
        self.hidden_size: int = model.config.hidden_size
        self.vocab_size: int = model.config.vocab_size
        self.vocabulary = self.vocabulary_class(checkpoint.folder, checkpoint.config, self.turn_end)
        self.max_length: int = self.vocabulary.max_length
        self._tied = nn.Linear(self.hidden_size, self.vocab_size, bias=False, device="meta")
        self._tied.weight = model.get_input_embeddings().weight
        self._is_compiled = False
        self._slot_adapter: SlotAdapter | None = None
        self._graphs: PassGraphs | None = None

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

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return what the output projection reads: the hidden states, unless the family transforms them."""
        return hidden_BPH

    def nested_attention(self, slots_BL: Tensor, real_BL: Tensor) -> Any:
        """Return the attention mask of a padded pass, as the transformers module takes it; slots are nested."""
        return nested_mask(slots_BL, real_BL, self.dtype)

    def freeze(self) -> None:
        """Prepare for passes without gradients (`linear.block_weights`, `cpu_tuning`); states stay bit for bit."""
        block_weights(self.model.base_model)
        if self.device.type == "cpu":
            keep_freed_memory()

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile the layers: one graph serves all of them. The first passes take half a minute."""
        self._check_whole_adapter()
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.compile(dynamic=True, backend=backend)
        self._is_compiled = True

    def record_passes(self) -> None:
        """Capture passes over few tokens as CUDA graphs, for inference mode; see `graphs`. Weights must not change."""
        self._check_whole_adapter()
        self._graphs = PassGraphs(self._recordable_states, self.device)

    def _check_whole_adapter(self) -> None:
        if self.adapts_slots_only:
            raise ValueError(
                "passes of an adapter that changes slots alone (adapter_on: slots) cannot be compiled or recorded"
            )

    def adapt_slots_only(self) -> None:
        """Apply an adapter that is not merged to slot positions only, in passes from now on.

        Gradient checkpointing would compute a pass again with the slots of a later one.
        """
        self._slot_adapter = SlotAdapter(self.model.base_model)

    @property
    def adapts_slots_only(self) -> bool:
        """Whether an adapter changes the states of slots alone."""
        return self._slot_adapter is not None

    @property
    def is_packed(self) -> bool:
        """Whether texts run in one row without pads."""
        return bool(self.model.config._attn_implementation == KERNEL)  # noqa: SLF001 (no public name)

    @property
    def window(self) -> int | None:
        """How many tokens to either side layers see that do not see the whole text; None: all of them do."""
        return None

    @property
    def slot_layers(self) -> SlotLayers | None:
        """What an adapter brought for slots, or None."""
        return getattr(self.model, MODULE, None)

    @property
    def output_projection(self) -> nn.Module:
        """The module from `head_input` to V logits: the input embeddings where the checkpoint has no head."""
        projection: nn.Module = self.model.get_output_embeddings() or self._tied
        return projection

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module:
        """The norm that the final hidden states come from: a weight, and a bias or none."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights, unless `precision` says another of the layers', and of all results."""
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
        logits_of_first: int | None = None,
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
            logits_of_first: of how many of the positions, the first ones, logits are computed; None: of all.

        Raises:
            ValueError: A text has more slots than the adapter has vectors for; nested slots without `slots` or on a
                causal backbone; or, for tensors on the CPU, a token id is out of range, a row has no token or too many.
        """
        inputs = PassInputs(input_ids, attention_mask, position_ids, slots)
        check_inputs(inputs, vocab_size=self.vocab_size, max_length=self.max_length)
        if slots is not None and self.slot_layers is not None:
            self.slot_layers.check(slots)
        if nested and slots is None:
            raise ValueError("nested slots need `slots`, which say where they are.")
        if nested and self.is_causal:
            raise ValueError(f"family '{self.family}' is causal, where every slot sees those before it: not nested.")
        hidden_BPH = self._read(inputs, positions, nested=nested)
        return BackboneOutput(hidden_BPH, self._logits(hidden_BPH[:, :logits_of_first].contiguous(), token_ids))

    def logits_of(self, directions_MH: Tensor) -> Tensor:
        """Return the logits [M, V] of stored vectors: directions, of any length, of final states.

        The states get back the length that the final norm gave them, so the logits are those of `forward` up to the
        rounding of the directions. Vectors of the readout `pooling` are read by the head alone, without slot layers.
        """
        norm = dict(self.final_norm.named_parameters())
        states_MH = as_states(moved(directions_MH, self.device), norm["weight"], norm.get("bias")).to(self.dtype)
        if self.slot_layers is not None and self.slot_layers.residual is not None:
            logits_MV: Tensor = self.output_projection(self.head_input(states_MH))
            return logits_MV
        return self._logits(states_MH[None], None)[0]

    def _read(self, inputs: PassInputs, positions_BP: Tensor, *, nested: bool) -> Tensor:
        """Run the model once and return the states at positions [B, P, H].

        Small passes are replayed, if passes are recorded. Nested slots in layers that attend to a window are padded: no
        two ends bound the tokens that a slot attends to.
        """
        graphs = self._graphs if torch.is_inference_mode_enabled() else None
        if graphs is not None and Shape.of(inputs.ids_BL, inputs.slots_BL, nested=nested).is_recorded:
            hidden_BLH = graphs.states(inputs.placed(), nested=nested)
        elif self.is_packed and not (nested and self.window is not None):
            hidden_TH, places_BL = self._packed_states(inputs.placed(), nested=nested)
            return hidden_TH[moved(places_BL.gather(1, positions_BP.cpu().long()), self.device)]
        else:
            hidden_BLH = self._padded_states(inputs, nested=nested)
        index_BPH = moved(positions_BP, self.device, torch.long).unsqueeze(-1).expand(-1, -1, self.hidden_size)
        return hidden_BLH.gather(1, index_BPH)

    def _packed_states(self, inputs: PassInputs, *, nested: bool) -> tuple[Tensor, Tensor]:
        """Return the final states [T, H] of a batch's tokens in one row, and their places in it [B, L] on the CPU.

        Texts that an adapter of slots does not change run before their slots, without gradients, if there are enough.
        """
        ids_BL, mask_BL, position_ids_BL, slots_BL = inputs
        assert position_ids_BL is not None, "they are placed"
        device, batch = self.device, PackedBatch(mask_BL, slots_BL if nested else None)
        layout = batch.layout(device, is_causal=self.is_causal, window=self.window)
        ids_1T = moved(batch.row(ids_BL), device, torch.long)
        position_ids_1T = moved(batch.row(position_ids_BL), device, torch.long)
        slots_1T, first, tokens = None if slots_BL is None else batch.row(slots_BL), batch.first_slot, ids_1T.shape[1]
        apart = self.adapts_slots_only and (torch.is_grad_enabled() or tokens >= TEXTS_APART)
        if not apart or slots_1T is None or not 0 < first < tokens:
            return self._run(ids_1T, slots_1T, position_ids_1T, packed_layout=layout)[0], batch.places_BL
        of_texts, of_slots = layout.in_two()
        with torch.no_grad():
            texts_1TH = self._run(ids_1T[:, :first], None, position_ids_1T[:, :first], packed_layout=of_texts)
        slots_1TH = self._run(
            ids_1T[:, first:], slots_1T[:, first:], position_ids_1T[:, first:], packed_layout=of_slots
        )
        return torch.cat([texts_1TH, slots_1TH], dim=1)[0], batch.places_BL

    def _padded_states(self, inputs: PassInputs, *, nested: bool) -> Tensor:
        """Return the final states of a padded batch, [B, L, H]."""
        # Compiled layers always get a mask: a graph less.
        if self._is_compiled or not bool(inputs.mask_BL.all()):
            inputs = inputs.placed()
        ids_BL, mask_BL, position_ids_BL, slots_BL = inputs
        real_BL = moved(mask_BL, self.device, torch.bool)
        attention_mask: Any = None
        if nested and slots_BL is not None:
            attention_mask = self.nested_attention(moved(slots_BL, self.device), real_BL)
        elif position_ids_BL is not None:
            # Without a mask transformers takes a jump in the positions for the border of a packed sequence.
            attention_mask = real_BL
        if position_ids_BL is not None:
            position_ids_BL = moved(position_ids_BL, self.device, torch.long)
        ids_BL = moved(ids_BL, self.device, torch.long)
        return self._run(ids_BL, slots_BL, position_ids_BL, attention_mask=attention_mask)

    def _recordable_states(self, inputs: PassInputs, nested: bool) -> Tensor:  # noqa: FBT001 (as `graphs.Run` says)
        """Return the final states of inputs on the device, without a look at their values."""
        real_BL = inputs.mask_BL.bool()
        if self.is_causal:
            column_L = torch.arange(real_BL.shape[1], device=real_BL.device)
            attention_mask = nested_mask(column_L.expand(real_BL.shape), real_BL, self.dtype)
        else:
            slots_BL = inputs.slots_BL if nested and inputs.slots_BL is not None else torch.full_like(inputs.ids_BL, -1)
            attention_mask = self.nested_attention(slots_BL, real_BL)
        return self._run(inputs.ids_BL, inputs.slots_BL, inputs.position_ids_BL, attention_mask=attention_mask)

    def _run(self, ids_BL: Tensor, slots_BL: Tensor | None, position_ids_BL: Tensor | None, **attention: Any) -> Tensor:
        """Return the final states; `attention` is the mask or the layout for the module."""
        if self._slot_adapter is not None:
            self._slot_adapter.set_slots(slots_BL, self.device)
        inputs, layers = {"input_ids": ids_BL}, self.slot_layers
        if layers is not None and layers.embeddings is not None and slots_BL is not None:
            inputs = {"inputs_embeds": layers.embedded(self.model.get_input_embeddings()(ids_BL), slots_BL)}
        output = self.model.base_model(**inputs, position_ids=position_ids_BL, use_cache=False, **attention)
        hidden_BLH: Tensor = output.last_hidden_state
        return hidden_BLH

    def _logits(self, hidden_BPH: Tensor, token_ids: Tensor | None) -> Tensor:
        if token_ids is not None and token_ids.shape[-1] == 0:
            return hidden_BPH.new_empty(*hidden_BPH.shape[:2], 0)
        if self.slot_layers is not None:
            hidden_BPH = self.slot_layers.head_input(hidden_BPH)
        states_BPH = self.head_input(hidden_BPH)
        if token_ids is None:
            logits_BPV: Tensor = self.output_projection(states_BPH)
            return logits_BPV
        return chosen_logits(self.output_projection, states_BPH, moved(token_ids, self.device, torch.long))


def nested_mask(slots_BL: Tensor, real_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores, [B, 1, L, L]: slot i sees the text and the slots up to itself.

    `slots_BL` counts the slots of a text from 0 on, -1 is for text; `real_BL` is False at padding.
    """
    # What is no slot counts as before the first one.
    sees_BLL = (slots_BL[:, :, None] >= slots_BL[:, None, :]) & real_BL[:, None, :]
    return torch.zeros_like(sees_BLL, dtype=dtype).masked_fill_(~sees_BLL, torch.finfo(dtype).min)[:, None]

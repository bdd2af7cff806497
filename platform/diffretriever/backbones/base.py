"""The interface of all backbones: final hidden states at given positions, and logits of given tokens there.

Only requested logits are computed, because all logits of a vocabulary of 150,000 cost more than the slots.

Legend: B batch, L padded length, P positions read in a row, H hidden size, V vocabulary, T requested tokens, M vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.cpu_tuning import keep_freed_memory
from diffretriever.backbones.device import to_device
from diffretriever.backbones.graphs import GraphKey, PassGraphs
from diffretriever.backbones.inputs import PassInputs, check_inputs
from diffretriever.backbones.linear import SlotAdapter, block_weights
from diffretriever.backbones.logits import as_states, chosen_logits
from diffretriever.backbones.packed import KERNEL, PackedBatch
from diffretriever.backbones.slot_layers import MODULE, SlotLayers
from diffretriever.backbones.vocabulary import Vocabulary

MIN_SEPARATE_TOKENS = 128
"""Minimum number of tokens to run texts before their slots, with an adapter on slots only (measured on a CPU)."""


class BackboneOutput(NamedTuple):
    """The result of a pass at the requested positions, in the backbone's dtype and on its device."""

    hidden: Tensor
    """[B, P, H]: hidden states after the final norm."""
    logits: Tensor
    """[B, P, V], or [B, P, T] for given token ids; with `logits_of_first`, for fewer positions."""


class Backbone(ABC):
    """A language model that computes hidden states and logits, independently of a text's batch."""

    family: ClassVar[str]
    """`model_type` of its checkpoints."""
    is_causal: ClassVar[bool]
    """Whether attention is causal."""
    turn_end: ClassVar[str]
    """The token that ends a turn in the chat template."""
    vocabulary_class: ClassVar[type[Vocabulary]] = Vocabulary
    fields: ClassVar[ConfigFields]
    """The known fields of config.json."""
    ignored_tensors: ClassVar[str]
    """Pattern of checkpoint tensors that the model does not use."""
    lora_targets: ClassVar[tuple[str, ...]]
    """LoRA's target modules: all matrices of attention and feed-forward layers, by transformers' names."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model = model
        """The transformers module. PEFT adapts it in place."""
        self.weights_digest: str = checkpoint.digest()
        self.precision: str = str(self.dtype).removeprefix("torch.")
        """Precision of the layers' products; same values as `backbone.dtype`."""
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
        """Return the transformers class of this architecture."""

    @classmethod
    @abstractmethod
    def model_config(cls, checkpoint: Checkpoint) -> Any:
        """Return the transformers config of a checkpoint whose fields have been checked."""

    @classmethod
    def checkpoint_names(cls, names: Iterable[str], checkpoint: Checkpoint) -> dict[str, str]:
        """Map names of the model's tensors to those of the checkpoint."""
        return {name: name for name in names}

    def head_input(self, hidden_BPH: Tensor) -> Tensor:
        """Return the input of the output projection: by default, the hidden states."""
        return hidden_BPH

    def nested_attention(self, slots_BL: Tensor, real_BL: Tensor) -> Any:
        """Return the model's attention mask for nested slots in a padded pass."""
        return nested_mask(slots_BL, real_BL, self.dtype)

    def freeze(self) -> None:
        """Optimise for inference without gradients; results stay equal bit for bit."""
        block_weights(self.model.base_model)
        if self.device.type == "cpu":
            keep_freed_memory()

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile the layers, which share one graph. The first passes take half a minute."""
        self._check_whole_adapter()
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.compile(dynamic=True, backend=backend)
        self._is_compiled = True

    def record_passes(self) -> None:
        """Capture short passes as CUDA graphs, for inference mode; see `graphs`. Do not change the weights later."""
        self._check_whole_adapter()
        self._graphs = PassGraphs(self._capturable_states, self.device)

    def _check_whole_adapter(self) -> None:
        if self.adapts_slots_only:
            raise ValueError("passes with an adapter on slots only (adapter_on: slots) cannot be compiled or recorded")

    def adapt_slots_only(self) -> None:
        """From now on, apply an unmerged adapter to slot positions only. Do not use it with gradient checkpointing."""
        self._slot_adapter = SlotAdapter(self.model.base_model)

    @property
    def adapts_slots_only(self) -> bool:
        """Whether the adapter applies to slot positions only."""
        return self._slot_adapter is not None

    @property
    def is_packed(self) -> bool:
        """Whether texts run in one row without padding."""
        return bool(self.model.config._attn_implementation == KERNEL)  # noqa: SLF001 (no public name)

    @property
    def window(self) -> int | None:
        """Number of tokens to either side in layers with local attention; None: all layers attend globally."""
        return None

    @property
    def slot_layers(self) -> SlotLayers | None:
        """The adapter's trained slot layers, if any."""
        return getattr(self.model, MODULE, None)

    @property
    def output_projection(self) -> nn.Module:
        """The module from `head_input` to V logits: the output head, or else the input embeddings."""
        projection: nn.Module = self.model.get_output_embeddings() or self._tied
        return projection

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module:
        """The norm after the last layer, with a weight and optionally a bias."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the results and of the weights; `precision` may differ for the layers' products."""
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
        """Run the model once and return states and logits at given positions, with gradients if enabled.

        Args:
            input_ids: [B, L], integer token ids, padded left or right.
            attention_mask: [B, L], 1 or True for tokens, 0 or False for padding.
            positions: [B, P], columns of `input_ids` to read in each row. Results at padding are undefined.
            token_ids: tokens to compute logits of, [T] for all rows or [B, T]; T = 0: no logits. None: the whole
                vocabulary.
            position_ids: [B, L], position of each token. Default: the number of tokens before it in its row.
            slots: [B, L], index of a slot in its text, from 0; -1 for other tokens. None: the pass has no slots, or
                nothing depends on them.
            nested: whether slot i sees only the text and slots up to i, and the text sees no slots. Needs `slots` and a
                backbone that is not causal.
            logits_of_first: number of leading positions to compute logits for. Default: all.

        Raises:
            ValueError: Too many slots for the adapter; invalid use of `nested`; or, for CPU tensors, a token id out of
                range, or a row without tokens or with too many.
        """
        inputs = PassInputs(input_ids, attention_mask, position_ids, slots)
        check_inputs(inputs, vocab_size=self.vocab_size, max_length=self.max_length)
        if slots is not None and self.slot_layers is not None:
            self.slot_layers.check(slots)
        if nested and slots is None:
            raise ValueError("nested slots need `slots`: pass the argument")
        if nested and self.is_causal:
            raise ValueError(f"nested slots need a backbone that is not causal: family '{self.family}' is causal")
        hidden_BPH = self._states_at(inputs, positions, nested=nested)
        return BackboneOutput(hidden_BPH, self._logits(hidden_BPH[:, :logits_of_first].contiguous(), token_ids))

    def logits_of(self, directions_MH: Tensor) -> Tensor:
        """Return the logits [M, V] of stored vectors of any length.

        The final norm determines the length that a state had, so the logits equal those of `forward` up to rounding;
        see `logits.as_states`. Vectors of the readout `pooling` skip the slot layers.
        """
        norm = dict(self.final_norm.named_parameters())
        states_MH = as_states(to_device(directions_MH, self.device), norm["weight"], norm.get("bias")).to(self.dtype)
        if self.slot_layers is not None and self.slot_layers.residual is not None:
            logits_MV: Tensor = self.output_projection(self.head_input(states_MH))
            return logits_MV
        return self._logits(states_MH[None], None)[0]

    def _states_at(self, inputs: PassInputs, positions_BP: Tensor, *, nested: bool) -> Tensor:
        # Packed layouts cannot express nested slots with local attention: these batches are padded.
        graphs = self._graphs if torch.is_inference_mode_enabled() else None
        if graphs is not None and GraphKey.of(inputs.ids_BL, inputs.slots_BL, nested=nested).is_captured:
            hidden_BLH = graphs.states(inputs.with_positions(), nested=nested)
        elif self.is_packed and not (nested and self.window is not None):
            hidden_TH, row_index_BL = self._packed_states(inputs.with_positions(), nested=nested)
            return hidden_TH[to_device(row_index_BL.gather(1, positions_BP.cpu().long()), self.device)]
        else:
            hidden_BLH = self._padded_states(inputs, nested=nested)
        index_BPH = to_device(positions_BP, self.device, torch.long).unsqueeze(-1).expand(-1, -1, self.hidden_size)
        return hidden_BLH.gather(1, index_BPH)

    def _packed_states(self, inputs: PassInputs, *, nested: bool) -> tuple[Tensor, Tensor]:
        """Return the final states [T, H] of a packed batch, and each token's index in it [B, L] on the CPU.

        With an adapter on slots only, texts run first, without gradients, unless the batch is small.
        """
        ids_BL, mask_BL, position_ids_BL, slots_BL = inputs
        assert position_ids_BL is not None, "`with_positions` sets positions"
        device, batch = self.device, PackedBatch(mask_BL, slots_BL if nested else None)
        layout = batch.layout(device, is_causal=self.is_causal, window=self.window)
        ids_1T = to_device(batch.row(ids_BL), device, torch.long)
        position_ids_1T = to_device(batch.row(position_ids_BL), device, torch.long)
        slots_1T, first, tokens = None if slots_BL is None else batch.row(slots_BL), batch.first_slot, ids_1T.shape[1]
        separate = self.adapts_slots_only and (torch.is_grad_enabled() or tokens >= MIN_SEPARATE_TOKENS)
        if not separate or slots_1T is None or not 0 < first < tokens:
            return self._run(ids_1T, slots_1T, position_ids_1T, packed_layout=layout)[0], batch.row_index_BL
        text_layout, slot_layout = layout.split_before_slots()
        with torch.no_grad():
            texts_1TH = self._run(ids_1T[:, :first], None, position_ids_1T[:, :first], packed_layout=text_layout)
        slots_1TH = self._run(
            ids_1T[:, first:], slots_1T[:, first:], position_ids_1T[:, first:], packed_layout=slot_layout
        )
        return torch.cat([texts_1TH, slots_1TH], dim=1)[0], batch.row_index_BL

    def _padded_states(self, inputs: PassInputs, *, nested: bool) -> Tensor:
        # Compiled layers always get a mask, which saves a graph.
        if self._is_compiled or not bool(inputs.mask_BL.all()):
            inputs = inputs.with_positions()
        ids_BL, mask_BL, position_ids_BL, slots_BL = inputs
        real_BL = to_device(mask_BL, self.device, torch.bool)
        attention_mask: Any = None
        if nested and slots_BL is not None:
            attention_mask = self.nested_attention(to_device(slots_BL, self.device), real_BL)
        elif position_ids_BL is not None:
            # Without a mask, transformers takes a jump in the positions for a boundary of packed sequences.
            attention_mask = real_BL
        if position_ids_BL is not None:
            position_ids_BL = to_device(position_ids_BL, self.device, torch.long)
        ids_BL = to_device(ids_BL, self.device, torch.long)
        return self._run(ids_BL, slots_BL, position_ids_BL, attention_mask=attention_mask)

    def _capturable_states(self, inputs: PassInputs, nested: bool) -> Tensor:  # noqa: FBT001 (as in `graphs.RunPass`)
        # CUDA graphs cannot branch on values, so this does not read them.
        real_BL = inputs.mask_BL.bool()
        if self.is_causal:
            column_L = torch.arange(real_BL.shape[1], device=real_BL.device)
            attention_mask = nested_mask(column_L.expand(real_BL.shape), real_BL, self.dtype)
        else:
            slots_BL = inputs.slots_BL if nested and inputs.slots_BL is not None else torch.full_like(inputs.ids_BL, -1)
            attention_mask = self.nested_attention(slots_BL, real_BL)
        return self._run(inputs.ids_BL, inputs.slots_BL, inputs.position_ids_BL, attention_mask=attention_mask)

    def _run(self, ids_BL: Tensor, slots_BL: Tensor | None, position_ids_BL: Tensor | None, **attention: Any) -> Tensor:
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
        return chosen_logits(self.output_projection, states_BPH, to_device(token_ids, self.device, torch.long))


def nested_mask(slots_BL: Tensor, real_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive attention mask of nested slots, [B, 1, L, L]: slot i sees the text and slots up to i.

    `slots_BL` has the index of each slot, -1 for text; `real_BL` is False at padding.
    """
    sees_BLL = (slots_BL[:, :, None] >= slots_BL[:, None, :]) & real_BL[:, None, :]
    return torch.zeros_like(sees_BLL, dtype=dtype).masked_fill_(~sees_BLL, torch.finfo(dtype).min)[:, None]

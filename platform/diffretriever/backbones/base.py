"""The contract of every backbone: final hidden states at chosen positions, and the logits of chosen tokens there.

Only logits that are asked for are computed: in a vocabulary of 150,000 all of them cost more than the slots do.

Legend: B batch, L padded length, P positions read in a row, H hidden size, V vocabulary, T chosen tokens, M vectors,
N dimensions that the final norm does not switch off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.modeling_layers import GradientCheckpointingLayer

from diffretriever.backbones.checkpoint import Checkpoint, ConfigFields
from diffretriever.backbones.cpu_tuning import block_weights, keep_freed_memory
from diffretriever.backbones.device import moved, resolve_attention
from diffretriever.backbones.graphs import PassGraphs, Shape
from diffretriever.backbones.inputs import PassInputs, check_inputs, whole_steps
from diffretriever.backbones.packed import KERNEL, Layout, PackedBatch
from diffretriever.backbones.slot_layers import MODULE, SlotLayers
from diffretriever.backbones.vocabulary import Vocabulary
from diffretriever.backbones.weights import load_model

TEXTS_APART = 128
"""Tokens of a row from which on texts run before their slots, where an adapter changes these alone.

For fewer, a second look at the weights takes longer than the adapter's products for texts (measured on a CPU).
"""
_SWITCHED_OFF = 1e-3
"""Relative to the norm's largest weight. What z is in a dimension with less, no state tells: it counts there as it does
in the others, on average. MiniLM has 3 such dimensions of 384."""
Adapted: TypeAlias = Callable[[Any, nn.Module, nn.Linear, nn.Linear, float, Tensor], Tensor]
"""PEFT's layer, its dropout, A, B and scaling, and inputs [B, L, I] → [B, L, O]."""


class BackboneOutput(NamedTuple):
    """What one pass gives at the positions asked for, in the backbone's dtype and on its device."""

    hidden: Tensor
    """[B, P, H]: hidden states after the final norm, that is, what the output head reads."""
    logits: Tensor
    """[B, P, V], or [B, P, T] where token ids were given; P is less where fewer positions were asked for."""


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
    packs: ClassVar[bool] = False
    """Whether its module takes texts in one row without pads: it hands what it is given on to its attention."""

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
        self._is_compiled = False
        self.adapts_slots_only = False
        """Whether an adapter changes the states of slots alone."""
        self._slot_rows: slice | Tensor | None = None
        self._graphs: PassGraphs | None = None

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
        kernel = resolve_attention(attention, device, dtype, packs=cls.packs)
        model = load_model(
            cls.model_class(checkpoint),
            cls.model_config(checkpoint),
            checkpoint,
            checkpoint_name=lambda name: cls.checkpoint_name(name, checkpoint),
            ignored=cls.ignored_tensors,
            dtype=dtype,
            attention=KERNEL if kernel == "packed" else kernel,
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

    def padded_attention(self, real_BL: Tensor) -> Any:
        """Return the attention mask of a pass without nested slots, as `nested_attention` returns one of those with.

        Args:
            real_BL: bool, False at pads, on the backbone's device.
        """
        if not self.is_causal:
            return self.nested_attention(torch.full_like(real_BL, -1, dtype=torch.long), real_BL)
        column_L = torch.arange(real_BL.shape[1], device=real_BL.device)
        return nested_mask(column_L.expand(real_BL.shape), real_BL, self.dtype)

    def freeze(self) -> None:
        """Get ready for passes without gradients: on a CPU weights are put in blocks, and freed memory is kept.

        States stay the same bit for bit. See `cpu_tuning`.
        """
        block_weights(self.model.base_model)
        if self.device.type == "cpu":
            keep_freed_memory()

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile the layers: norms, rotary positions and activations then take few kernels. Not for training.

        All layers have one code, so one graph serves all; it takes any number of texts and tokens. The first passes
        take half a minute. States stay the same up to the rounding of sums.

        Args:
            backend: of torch.compile.

        Raises:
            ValueError: the adapter changes slots alone.
        """
        self._check_whole_adapter("compiled")
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.compile(dynamic=True, backend=backend)
        self._is_compiled = True

    def record_passes(self) -> None:
        """Record passes over few tokens for replay, in inference mode; see `graphs`. What they are made of stays as is.

        Raises:
            ValueError: the adapter changes slots alone.
        """
        self._check_whole_adapter("recorded")
        self._graphs = PassGraphs(self._recordable_states, self.device)

    def adapt_slots_only(self) -> None:
        """Have an adapter that stands beside the weights change the states of slots alone, in passes from now on.

        Its products are then of slots alone too. Gradient checkpointing would compute a pass again with the slots of a
        later one.
        """
        self.adapts_slots_only = True
        # A head of its own reads slots alone.
        compute_adapted_by(self._adapted, self.model.base_model)

    def _check_whole_adapter(self, what: str) -> None:
        if self.adapts_slots_only:
            raise ValueError(f"passes of an adapter that changes slots alone (adapter_on: slots) cannot be {what}")

    def _adapted(
        self, layer: Any, dropout: nn.Module, down: nn.Linear, up: nn.Linear, scaling: float, inputs_BLI: Tensor
    ) -> Tensor:
        """Return what PEFT's layer does at slots, and the layer under it everywhere else."""
        given_BLO: Tensor = layer.base_layer(inputs_BLI)
        rows = self._slot_rows
        if rows is None:
            return given_BLO
        given_TO = given_BLO.flatten(0, 1)
        read_MI = inputs_BLI.flatten(0, 1)[rows].float()
        if layer.training:
            read_MI = dropout(read_MI)
        change_MO = linear(linear(read_MI, down.weight), up.weight)
        # The sum is rounded once.
        given_TO[rows] = torch.add(given_TO[rows], change_MO, alpha=scaling).to(given_TO.dtype)
        return given_TO.view_as(given_BLO)

    @property
    def recorded_shapes(self) -> list[Shape]:
        """The shapes that passes were recorded for."""
        return [] if self._graphs is None else self._graphs.shapes

    @property
    def is_packed(self) -> bool:
        """Whether texts run in one row without pads."""
        return self._kernel == KERNEL

    @property
    def window(self) -> int | None:
        """How many tokens to either side layers see that do not see the whole text; None: all of them do."""
        return None

    @property
    def _kernel(self) -> str:
        kernel: str = self.model.config._attn_implementation  # noqa: SLF001 (no public name)
        return kernel

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
        self._tied.weight = self.model.get_input_embeddings().weight
        return self._tied

    @cached_property
    def _tied(self) -> nn.Linear:
        with torch.device("meta"):
            return nn.Linear(self.hidden_size, self.vocab_size, bias=False)

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
            ValueError: Shapes do not fit each other; a text has more slots than the adapter has vectors for; nested
                slots without `slots` or on a causal backbone; or, for tensors on the CPU (a look at values on a GPU
                would stall it), a value is out of range or a row has no token.
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
        if nested:
            self._check_nested(slots)
        read = self._read_packed if self.is_packed else self._read_padded
        if self._graphs is not None and torch.is_inference_mode_enabled():
            read = self._read_recorded if Shape.of(input_ids, slots, nested=nested).is_recorded else read
        inputs = PassInputs(input_ids, attention_mask, position_ids, slots)
        hidden_BPH = read(inputs, positions, nested=nested)
        return BackboneOutput(hidden_BPH, self._logits(hidden_BPH[:, :logits_of_first].contiguous(), token_ids))

    def logits_of(self, directions_MH: Tensor) -> Tensor:
        """Return [M, V], on the device: the logits of final states whose directions alone are left: stored vectors.

        They are those that `forward` gave at the states, up to the rounding of the directions: the states get back the
        length that the final norm gave them. A head without biases and layers of its own (all but BERT's and
        ModernBERT's masked-language heads) ranks tokens by the direction alone. Vectors of a readout that adds to the
        mean of the text's states are read as that mean is: the head as published, without what was learned for slots.

        Args:
            directions_MH: floating, of any length.
        """
        norm = dict(self.final_norm.named_parameters())
        states_MH = as_states(moved(directions_MH, self.device), norm["weight"], norm.get("bias")).to(self.dtype)
        if self.slot_layers is not None and self.slot_layers.residual is not None:
            logits_MV: Tensor = self.output_projection(self.head_input(states_MH))
            return logits_MV
        return self._logits(states_MH[None], None)[0]

    def _check_nested(self, slots_BL: Tensor | None) -> None:
        if slots_BL is None:
            raise ValueError("nested slots need `slots`, which say where they are.")
        if self.is_causal:
            raise ValueError(f"family '{self.family}' is causal, where every slot sees those before it: not nested.")

    def _read_packed(self, inputs: PassInputs, positions_BP: Tensor, *, nested: bool) -> Tensor:
        ids_BL, mask_BL, position_ids_BL, slots_BL = inputs.placed()
        assert position_ids_BL is not None, "they are placed"
        batch = PackedBatch(mask_BL, slots_BL if nested else None)
        layout = batch.layout(self.device, is_causal=self.is_causal, window=self.window)
        ids_1T = moved(batch.row(ids_BL), self.device, torch.long)
        position_ids_1T = moved(batch.row(position_ids_BL), self.device, torch.long)
        slots_1T = None if slots_BL is None else batch.row(slots_BL)
        apart = self.adapts_slots_only and (torch.is_grad_enabled() or ids_1T.shape[1] >= TEXTS_APART)
        if apart and slots_1T is not None and 0 < batch.first_slot < ids_1T.shape[1]:
            hidden_1TH = self._run_in_two(ids_1T, slots_1T, position_ids_1T, layout, batch.first_slot)
        else:
            hidden_1TH = self._run(ids_1T, slots_1T, position_ids_1T, packed_layout=layout)
        places_BP = batch.places_BL.gather(1, positions_BP.cpu().long())
        return hidden_1TH[0][moved(places_BP, self.device)]

    def _read_recorded(self, inputs: PassInputs, positions_BP: Tensor, *, nested: bool) -> Tensor:
        assert self._graphs is not None, "`forward` has looked"
        if self.slot_layers is not None and inputs.slots_BL is not None:
            self.slot_layers.check(inputs.slots_BL)
        return self._at(positions_BP, self._graphs.states(inputs.placed(), nested=nested))

    def _recordable_states(self, inputs: PassInputs, nested: bool) -> Tensor:  # noqa: FBT001 (as `graphs.Run` says)
        """Return the final states of inputs on the device, without a look at their values."""
        real_BL = inputs.mask_BL.bool()
        if nested:
            assert inputs.slots_BL is not None, "`forward` has checked"
            attention_mask = self.nested_attention(inputs.slots_BL, real_BL)
        else:
            attention_mask = self.padded_attention(real_BL)
        return self._run(inputs.ids_BL, inputs.slots_BL, inputs.position_ids_BL, attention_mask=attention_mask)

    def _read_padded(self, inputs: PassInputs, positions_BP: Tensor, *, nested: bool) -> Tensor:
        if self._is_compiled or not bool(inputs.mask_BL.all()):
            inputs = inputs.placed()
        if self._is_compiled:
            inputs = inputs.padded(*whole_steps(inputs.ids_BL))
        ids_BL, mask_BL, position_ids_BL, slots_BL = inputs
        real_BL = moved(mask_BL, self.device, torch.bool)
        attention_mask: Any = None
        if nested and slots_BL is not None:
            attention_mask = self.nested_attention(moved(slots_BL, self.device), real_BL)
        elif position_ids_BL is not None:
            # No mask is the faster path. With positions of the caller's own one is always given: without it
            # transformers would take a jump in the positions for the border of a packed sequence.
            attention_mask = real_BL
        if position_ids_BL is not None:
            position_ids_BL = moved(position_ids_BL, self.device, torch.long)
        ids_BL = moved(ids_BL, self.device, torch.long)
        hidden_BLH = self._run(ids_BL, slots_BL, position_ids_BL, attention_mask=attention_mask)
        return self._at(positions_BP, hidden_BLH)

    def _at(self, positions_BP: Tensor, hidden_BLH: Tensor) -> Tensor:
        index_BPH = moved(positions_BP, self.device, torch.long).unsqueeze(-1).expand(-1, -1, self.hidden_size)
        return hidden_BLH.gather(1, index_BPH)

    def _run(self, ids_BL: Tensor, slots_BL: Tensor | None, position_ids_BL: Tensor | None, **attention: Any) -> Tensor:
        """Return the final states; `attention` is what the module is told of who sees whom."""
        inputs = self._inputs(ids_BL, slots_BL)
        if self.adapts_slots_only:
            self._slot_rows = None if slots_BL is None else self._rows_of(slots_BL)
        output = self.model.base_model(**inputs, position_ids=position_ids_BL, use_cache=False, **attention)
        hidden_BLH: Tensor = output.last_hidden_state
        return hidden_BLH

    def _rows_of(self, slots_BL: Tensor) -> slice | Tensor:
        """Return which tokens are slots: a slice where they stand together, as nested ones of a row do."""
        rows_M = (slots_BL.flatten() >= 0).nonzero()[:, 0]
        if len(rows_M) and rows_M[-1] - rows_M[0] == len(rows_M) - 1:
            return slice(int(rows_M[0]), int(rows_M[-1]) + 1)
        return moved(rows_M, self.device)

    def _run_in_two(
        self, ids_1T: Tensor, slots_1T: Tensor, position_ids_1T: Tensor, layout: Layout, first_slot: int
    ) -> Tensor:
        """Return what `_run` does: of texts, which an adapter of slots leaves as they are, and then of their slots.

        No gradient goes back through the texts, which costs most of a training step otherwise.
        """
        of_texts, of_slots = layout.in_two()
        with torch.no_grad():
            texts_1TH = self._run(ids_1T[:, :first_slot], None, position_ids_1T[:, :first_slot], packed_layout=of_texts)
        slots_1TH = self._run(
            ids_1T[:, first_slot:], slots_1T[:, first_slot:], position_ids_1T[:, first_slot:], packed_layout=of_slots
        )
        return torch.cat([texts_1TH, slots_1TH], dim=1)

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
        return chosen_logits(self.output_projection, states_BPH, moved(token_ids, self.device, torch.long))


def compute_adapted_by(adapted: Adapted, model: nn.Module) -> None:
    """Have every matrix of a model that LoRA adapts be computed by `adapted`, in place of PEFT's own code."""
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "lora_B"):
            # Looked up once: a query asks every matrix for them.
            parts = (layer.lora_dropout, layer.lora_A, layer.lora_B, layer.scaling)
            layer.forward = partial(adapted, layer, *(part["default"] for part in parts))


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


def pad_right(rows: Sequence[np.ndarray], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 [B, L] with `fill` after each row's end, and the mask int64 [B, L] of real entries."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max()) if len(rows) else 0
    mask_BL = (torch.arange(width)[None, :] < lengths[:, None]).long()
    ids_BL = torch.full((len(rows), width), fill, dtype=torch.int64)
    if width:
        ids_BL[mask_BL.bool()] = torch.from_numpy(np.concatenate(rows)).long()
    return ids_BL, mask_BL


def as_states(directions_MH: Tensor, weight_H: Tensor, bias_H: Tensor | None) -> Tensor:
    """Return float32 [M, H]: each direction of a final state with the length that a state has there.

    A norm leaves its states on an ellipsoid: state = weight · z + bias with |z|² = H, for RMSNorm and LayerNorm alike.
    So the length that a stored unit vector has lost follows from the weights of the norm, up to the rounding of the
    vector and the norm's epsilon. The mean of several states lies within the ellipsoid, and is made longer than it was.

    Args:
        directions_MH: floating, of any length; 0 stays 0.
        weight_H: of the norm.
        bias_H: of the norm; None for one without.
    """
    weight_H = weight_H.float()
    is_on_H = weight_H.abs() > _SWITCHED_OFF * weight_H.abs().max()
    ray_MN = directions_MH.float()[:, is_on_H] / weight_H[is_on_H]
    centre_N = torch.zeros_like(ray_MN[0]) if bias_H is None else bias_H.float()[is_on_H] / weight_H[is_on_H]
    # |length · ray - centre|² = N; of the two lengths the one that goes along the ray, not against it.
    square_M = ray_MN.square().sum(1).clamp(min=torch.finfo(torch.float32).tiny)
    along_M = ray_MN @ centre_N
    outside = centre_N.square().sum() - len(centre_N)
    length_M = (along_M + (along_M.square() - square_M * outside).clamp(min=0).sqrt()) / square_M
    return directions_MH.float() * length_M[:, None]

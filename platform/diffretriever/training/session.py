"""One worker's training: describe it in a manifest, check the config, then load the model and its trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from peft import LoraConfig

from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.device import resolve_device, resolve_dtype
from diffretriever.backbones.source import resolve_source
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.schemas.retriever import (
    TRAINABLE_METHODS,
    BackboneRetriever,
    RetrieverConfig,
    has_slots,
    is_trainable,
)
from diffretriever.schemas.training import Recipe, TrainingManifest
from diffretriever.training.adapters import (
    StartingValues,
    attach_lora,
    describe_start,
    read_start,
    save_adapter,
    trainable_parameters,
)
from diffretriever.training.batches import Batches
from diffretriever.training.data.examples import passage_key
from diffretriever.training.data.training_set import TrainingSet
from diffretriever.training.engine import open_engine
from diffretriever.training.gather import Workers
from diffretriever.training.loop import Trainer
from diffretriever.training.trainable import with_training_lengths
from diffretriever.vectors.sparse import idf_roots

if TYPE_CHECKING:
    from diffretriever.encoders.masked import MaskedEncoder

_PASSAGES_COUNTED = 20_000
"""Number of passages whose words are counted for idf weights; takes about ten seconds."""


def describe_training(
    retriever: BackboneRetriever, recipe: Recipe, data: TrainingSet, workers: int, device: str
) -> TrainingManifest:
    """Return the manifest of a new training by `workers` processes, without loading weights.

    Call it on a node of the training: `auto` devices and dtypes depend on the node.

    Raises:
        ValueError: The backbone is missing, or the training set is too small.
    """
    weights = Checkpoint.open(resolve_source(retriever.backbone.source, retriever.backbone.revision)).digest()
    dtype = resolve_dtype(retriever.backbone.dtype, resolve_device(device))
    start = describe_start(retriever.backbone, recipe)
    changes = {"dtype": str(dtype).removeprefix("torch."), "adapter": None, "adapter_revision": None}
    backbone = retriever.backbone.model_copy(update=changes)
    retriever = with_training_lengths(retriever, recipe)
    batches = Batches(data, load_preparer(retriever), recipe, Workers(0, workers))
    return TrainingManifest(
        retriever=retriever.model_copy(update={"backbone": backbone}),
        weights=weights,
        start=start,
        recipe=recipe,
        data=data.digest,
        examples=len(data),
        workers=workers,
        total_steps=batches.total_steps,
    )


def check_trainable(retriever: RetrieverConfig, recipe: Recipe) -> BackboneRetriever:
    """Return the retriever if the recipe can train it.

    Raises:
        ValueError: The recipe does not fit the retriever; the message names the field.
    """
    if not is_trainable(retriever):
        methods = ", ".join(TRAINABLE_METHODS)
        raise ValueError(f"the {retriever.method} method cannot be trained: use one of {methods}")
    if has_slots(retriever) and retriever.stop_truncation != "none":
        raise ValueError("training uses all slots: set stop_truncation to none; for searching you can change it later")
    if has_slots(retriever) and retriever.adapter_on == "slots" and recipe.gradient_checkpointing:
        raise ValueError("adapter_on: slots does not support gradient checkpointing: set --no-gradient-checkpointing")
    if recipe.distillation_weight and not (
        has_slots(retriever) and retriever.adapter_on == "slots" and retriever.steps == 1
    ):
        raise ValueError(
            "the recipe distils from the text's tokens: set the retriever's adapter_on to slots and steps to 1, or use "
            "another --recipe"
        )
    if not retriever.has_query_budget and (recipe.query_budgets or recipe.passage_budgets):
        raise ValueError(f"the {retriever.method} method has no slots: remove --query-budgets and --passage-budgets")
    if recipe.slot_layers:
        _check_slot_layers(retriever, recipe)
    return retriever


def _check_slot_layers(retriever: BackboneRetriever, recipe: Recipe) -> None:
    if not has_slots(retriever):
        raise ValueError(
            f"the {retriever.method} method has no slots for the recipe's slot_layers: use another --recipe"
        )
    budget = retriever.budget
    largest = max((budget.query, budget.passage, *recipe.query_budgets, *recipe.passage_budgets))
    if recipe.slot_layers < largest:
        raise ValueError(
            f"the recipe has layers for {recipe.slot_layers} slots, but texts have up to {largest}: use smaller budgets"
        )


@dataclass(frozen=True)
class Session:
    """A loaded retriever in training."""

    encoder: BackboneEncoder
    """Encoder of the backbone in training."""
    lora: LoraConfig
    trainer: Trainer
    manifest: TrainingManifest
    """Manifest of the start, with the number of trainable parameters."""

    def save_adapter(self, target: Path) -> TrainingManifest:
        """Write the current adapter; see `adapters.save_adapter`."""
        manifest = self.manifest.model_copy(update={"step": self.trainer.step})
        return save_adapter(self.encoder.backbone, self.lora, manifest, target)


def open_session(data: TrainingSet, manifest: TrainingManifest, device: str, workers: Workers) -> Session:
    """Load the backbone, attach a new adapter with its starting values, and prepare for step 0.

    Raises:
        ValueError: The backbone or the adapter cannot be loaded, or the training set is too small.
    """
    recipe, retriever = manifest.recipe, check_trainable(manifest.retriever, manifest.recipe)
    encoder = cast("BackboneEncoder", load_encoder(retriever, device, trainable=True))
    # Before `attach_lora`, which changes the names of modules.
    start = read_start(encoder.backbone, retriever.backbone, manifest.start)
    batches = Batches(data, load_preparer(retriever), recipe, workers)
    readout = retriever.readout if has_slots(retriever) else "states"
    word_weights_V = _word_weights(batches, encoder, start) if recipe.slot_layers else None
    lora = attach_lora(encoder.backbone, recipe, readout, word_weights_V)
    if start is not None:
        start.copy_to(encoder.backbone)
    if has_slots(retriever) and retriever.adapter_on == "slots":
        encoder.backbone.adapt_slots_only()
        cast("MaskedEncoder", encoder).keeps_tokens = recipe.distillation_weight > 0
    elif encoder.backbone.device.type == "cuda" and not recipe.gradient_checkpointing:
        # Gradient checkpointing would bypass compiled layers.
        encoder.backbone.compile_layers()
    parameters = trainable_parameters(encoder.backbone)
    engine = open_engine(encoder.backbone.model, parameters, recipe, workers)
    trainer = Trainer(encoder, batches, engine, recipe, workers)
    count = sum(parameter.numel() for parameter in parameters.values())
    return Session(encoder, lora, trainer, manifest.model_copy(update={"trainable": count}))


def _word_weights(batches: Batches, encoder: BackboneEncoder, start: StartingValues | None) -> torch.Tensor:
    """Return factors of impacts, float32 [V]: those of the starting adapter, or idf weights of the first passages."""
    if start is not None and start.slots is not None and start.slots.word_weights is not None:
        return start.slots.word_weights
    passages = {passage_key(passage): passage for passage in batches.first_passages(_PASSAGES_COUNTED)}.values()
    texts = encoder.preparer.prepare_passages([p.title for p in passages], [p.text for p in passages])
    return torch.from_numpy(idf_roots([text.content_ids for text in texts], encoder.backbone.vocab_size))

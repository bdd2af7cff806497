"""One worker's training: its manifest, before any weights are loaded, and the loaded model with its trainer."""

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
from diffretriever.training.batches import Batches, TrainingData
from diffretriever.training.data.examples import passage_key
from diffretriever.training.engine import open_engine
from diffretriever.training.gather import Workers
from diffretriever.training.loop import Trainer
from diffretriever.training.trainable import TrainableEncoder, with_training_lengths
from diffretriever.vectors.sparse import idf_roots

if TYPE_CHECKING:
    from diffretriever.encoders.masked import MaskedEncoder

_PASSAGES_COUNTED = 20_000
"""Passages whose words are counted for idf weights, in some ten seconds."""


def describe_training(
    retriever: BackboneRetriever, recipe: Recipe, data: TrainingData, workers: int, device: str
) -> TrainingManifest:
    """Return the manifest of a training that has not begun, without loading weights; run it where training will.

    Where the retriever has an adapter, training starts from it.

    Args:
        retriever: to train.
        recipe: of the training.
        data: the training set.
        workers: number of processes that train.
        device: of each of them.

    Raises:
        ValueError: The backbone cannot be found, or the training set is too small.
    """
    weights = Checkpoint.open(resolve_source(retriever.backbone.source, retriever.backbone.revision)).digest()
    dtype = resolve_dtype(retriever.backbone.dtype, resolve_device(device))
    start = describe_start(retriever.backbone, recipe)
    changes = {"dtype": str(dtype).removeprefix("torch."), "adapter": None, "adapter_revision": None}
    place = retriever.backbone.model_copy(update=changes)
    batches = Batches(data, load_preparer(with_training_lengths(retriever, recipe)), recipe, Workers(0, workers))
    return TrainingManifest(
        retriever=retriever.model_copy(update={"backbone": place}),
        weights=weights,
        start=start,
        recipe=recipe,
        data=data.digest,
        examples=len(data),
        workers=workers,
        total_steps=batches.total_steps,
    )


def check_trainable(retriever: RetrieverConfig, recipe: Recipe) -> BackboneRetriever:
    """Return the retriever if it can be trained.

    Raises:
        ValueError: it cannot, with the field and what to do.
    """
    if not is_trainable(retriever):
        methods = ", ".join(TRAINABLE_METHODS)
        raise ValueError(f"the {retriever.method} method cannot be trained here: take one of {methods}")
    if has_slots(retriever) and retriever.stop_truncation != "none":
        raise ValueError(
            "training reads all slots: set stop_truncation to none, and change it for searching if you like"
        )
    if has_slots(retriever) and retriever.adapter_on == "slots" and recipe.gradient_checkpointing:
        raise ValueError("adapter_on: slots does not go with gradient checkpointing: set --no-gradient-checkpointing")
    if recipe.distillation_weight and not (
        has_slots(retriever) and retriever.adapter_on == "slots" and retriever.steps == 1
    ):
        raise ValueError(
            "the recipe distils from the text's own tokens: set the retriever's adapter_on to slots and steps to 1, or "
            "choose another --recipe"
        )
    if not retriever.has_query_budget and (recipe.query_budgets or recipe.passage_budgets):
        raise ValueError(f"the {retriever.method} method has no slots: leave --query-budgets and --passage-budgets out")
    if recipe.slot_layers:
        _check_slot_layers(retriever, recipe)
    return retriever


def _check_slot_layers(retriever: BackboneRetriever, recipe: Recipe) -> None:
    if not has_slots(retriever):
        raise ValueError(f"the recipe's slot_layers: the {retriever.method} method has no slots: take another --recipe")
    budget = retriever.budget
    largest = max((budget.query, budget.passage, *recipe.query_budgets, *recipe.passage_budgets))
    if recipe.slot_layers < largest:
        raise ValueError(f"the recipe has layers for {recipe.slot_layers} slots, but texts have up to {largest}")


@dataclass(frozen=True)
class Session:
    """A loaded retriever in training."""

    encoder: BackboneEncoder
    """Over the backbone in training."""
    lora: LoraConfig
    trainer: Trainer
    manifest: TrainingManifest
    """As at the start, with the number of trainable parameters."""

    def save_adapter(self, target: Path) -> TrainingManifest:
        """Write the adapter as it is now; see `adapters.save_adapter`."""
        manifest = self.manifest.model_copy(update={"step": self.trainer.step})
        return save_adapter(self.encoder.backbone, self.lora, manifest, target)


def open_session(data: TrainingData, manifest: TrainingManifest, device: str, workers: Workers) -> Session:
    """Load the backbone, attach a new adapter with the values that it starts from, and prepare for step 0.

    Args:
        data: the training set.
        manifest: of the training.
        device: of this worker.
        workers: this one among all.

    Raises:
        ValueError: The backbone or the adapter cannot be loaded, or the training set is too small.
    """
    recipe, retriever = manifest.recipe, check_trainable(manifest.retriever, manifest.recipe)
    encoder = cast("BackboneEncoder", load_encoder(retriever, device, trainable=True))
    # Modules are matched by the names that they have without an adapter.
    start = read_start(encoder.backbone, retriever.backbone, manifest.start)
    batches = Batches(data, load_preparer(with_training_lengths(retriever, recipe)), recipe, workers)
    readout = retriever.readout if has_slots(retriever) else "states"
    word_weights_V = _word_weights(batches, encoder, start) if recipe.slot_layers else None
    lora = attach_lora(encoder.backbone, recipe, readout, word_weights_V)
    if start is not None:
        start.put_on(encoder.backbone)
    if has_slots(retriever) and retriever.adapter_on == "slots":
        encoder.backbone.adapt_slots_only()
        cast("MaskedEncoder", encoder).keeps_tokens = recipe.distillation_weight > 0
    elif encoder.backbone.device.type == "cuda" and not recipe.gradient_checkpointing:
        # Under gradient checkpointing torch runs layers as they are.
        encoder.backbone.compile_layers()
    parameters = trainable_parameters(encoder.backbone)
    engine = open_engine(encoder.backbone.model, parameters, recipe, workers)
    trainer = Trainer(TrainableEncoder(encoder), batches, engine, recipe, workers)
    count = sum(parameter.numel() for parameter in parameters.values())
    return Session(encoder, lora, trainer, manifest.model_copy(update={"trainable": count}))


def _word_weights(batches: Batches, encoder: BackboneEncoder, start: StartingValues | None) -> torch.Tensor:
    """Return factors of impacts, float32 [V]: those of the adapter to start from, or idf weights of first passages."""
    if start is not None and start.slots is not None and start.slots.word_weights is not None:
        return start.slots.word_weights
    passages = {passage_key(passage): passage for passage in batches.first_passages(_PASSAGES_COUNTED)}.values()
    texts = encoder.preparer.prepare_passages([p.title for p in passages], [p.text for p in passages])
    return torch.from_numpy(idf_roots([text.content_ids for text in texts], encoder.backbone.vocab_size))

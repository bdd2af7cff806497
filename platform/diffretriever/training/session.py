"""From a manifest to a trainer on one worker: the encoder with its adapter, its batches, the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig

from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.training.batches import Batches, TrainingData
from diffretriever.training.engine import Engine, PlainEngine
from diffretriever.training.gather import Workers
from diffretriever.training.lengths import with_training_lengths
from diffretriever.training.loop import Trainer
from diffretriever.training.lora import attach_lora, trainable_parameters
from diffretriever.training.planned import check_trainable
from diffretriever.training.saving import save_adapter
from diffretriever.training.start import read_start
from diffretriever.training.teacher import open_teacher
from diffretriever.training.trainable import trainable
from schemas.training import Recipe
from schemas.training_manifest import TrainingManifest


@dataclass(frozen=True)
class Session:
    """What a worker trains with."""

    encoder: BackboneEncoder
    """The retriever as it is used, over the backbone in training."""
    lora: LoraConfig
    trainer: Trainer
    manifest: TrainingManifest
    """As at the start, with the number of trainable parameters."""

    def save_adapter(self, target: Path) -> TrainingManifest:
        """Write the adapter as it is now; see `saving.save_adapter`."""
        manifest = self.manifest.model_copy(update={"step": self.trainer.step})
        return save_adapter(self.encoder.backbone, self.lora, manifest, target)


def open_session(data: TrainingData, manifest: TrainingManifest, device: str, workers: Workers) -> Session:
    """Load the backbone, put a new adapter on it, with the values of the one to go on from, and get ready for step 0.

    Raises:
        ValueError: the backbone, that adapter or the teacher cannot be loaded, or the training set does not suffice.
    """
    recipe, retriever = manifest.recipe, check_trainable(manifest.retriever, manifest.recipe)
    encoder = cast("BackboneEncoder", load_encoder(retriever, device))
    # Modules are matched by the names that they have without an adapter.
    start = read_start(encoder.backbone, retriever.backbone, manifest.start)
    lora = attach_lora(encoder.backbone, recipe)
    if start is not None:
        start.put_on(encoder.backbone)
    parameters = trainable_parameters(encoder.backbone)
    teacher = open_teacher(recipe, encoder.facts.hidden_size, device)
    preparer = load_preparer(with_training_lengths(retriever, recipe))
    batches = Batches(data, preparer, recipe, workers, None if teacher is None else teacher.preparer)
    engine = _engine(encoder.backbone.model, parameters, recipe, workers)
    trainer = Trainer(trainable(encoder), batches, engine, recipe, workers, teacher)
    count = sum(parameter.numel() for parameter in parameters.values())
    return Session(encoder, lora, trainer, manifest.model_copy(update={"trainable": count}))


def _engine(
    module: torch.nn.Module, parameters: dict[str, torch.nn.Parameter], recipe: Recipe, workers: Workers
) -> Engine:
    if recipe.strategy == "ddp":
        return PlainEngine(parameters, recipe, workers)
    try:
        from diffretriever.training.deepspeed_engine import DeepSpeedEngine
    except ImportError as error:
        raise ValueError("strategy: deepspeed needs `pip install 'diffretriever[train]'`, or take ddp") from error
    return DeepSpeedEngine(module, parameters, recipe)

"""What a trained adapter says of its training."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from schemas.base import Model
from schemas.differences import differing_fields
from schemas.retriever import RetrieverConfig
from schemas.training import Recipe

TRAINING_FORMAT = 1
MANIFEST_FILE = "training.json"
"""Name of the manifest beside an adapter."""


class Start(Model):
    """The adapter that a training went on from."""

    adapter: str
    """Where it was: local folder, hub id, or `minilm`."""
    revision: str | None
    """Of a hub id."""
    digest: str
    """SHA-256 of its tensors' files."""


class TrainingManifest(Model):
    """What an adapter was trained on, and how; `training.json` beside it."""

    format: int = TRAINING_FORMAT
    """Version of this file."""
    retriever: RetrieverConfig
    """The retriever that was trained, without its adapter, `auto` precision replaced by what was used."""
    weights: str
    """Digest of the backbone's weights."""
    start: Start | None = None
    """The adapter that its values began with; None: a new one."""
    recipe: Recipe
    """How."""
    data: str
    """Digest of the training set."""
    examples: int
    """Queries in it."""
    workers: int
    """Processes that trained."""
    total_steps: int
    """Optimiser steps of the whole training."""
    step: int = 0
    """Steps done."""
    trainable: int | None = None
    """Parameters that are trained; None before there is an adapter."""
    adapter: str | None = None
    """SHA-256 of `adapter_model.safetensors`; None before there is one."""
    slots: str | None = None
    """SHA-256 of `slots.safetensors`; None where the recipe has nothing in it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the libraries that computed it."""

    def differences(self, other: TrainingManifest) -> list[str]:
        """Name the fields in which two trainings differ, as `field: this != other`; how far they are does not count."""
        return differing_fields(self._identity(), other._identity())

    def _identity(self) -> dict[str, Any]:
        values = self.model_dump(mode="json", exclude={"step", "trainable", "adapter", "slots", "versions"})
        # The same weights may lie elsewhere now: their digest is what counts.
        for place in ("source", "revision", "attention"):
            values["retriever"].get("backbone", {}).pop(place, None)
        values["start"] = None if self.start is None else self.start.digest
        return values

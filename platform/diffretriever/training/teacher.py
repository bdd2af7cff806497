"""Another retriever as a teacher: its vectors of the same texts, without gradients.

Its scores of all candidates say more of a query than which of them is the positive, and no training set has to be
scored in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import TRAINABLE_METHODS, BackboneRetriever, is_trainable
from diffretriever.schemas.training import OWN_TOKENS, Recipe
from diffretriever.training.gather import Workers, gather
from diffretriever.training.trainable import Taught, TrainableEncoder, join, with_training_lengths

if TYPE_CHECKING:
    from diffretriever.encoders.base import BackboneEncoder
    from diffretriever.training.batches import Part


class Teacher:
    """A retriever that is not trained; it represents the texts of each part as it would for an index.

    Attributes:
        preparer: of its texts, for the use of another thread.
    """

    def __init__(self, config: BackboneRetriever, device: str) -> None:
        """Load it; raises what `load_encoder` raises."""
        self.preparer = load_preparer(config)
        self._encoder = TrainableEncoder(cast("BackboneEncoder", load_encoder(config, device)))

    @property
    def hidden_size(self) -> int:
        """H of its vectors."""
        return self._encoder.backbone.hidden_size

    @torch.no_grad()
    def taught(self, parts: Sequence[Part], pool: Workers) -> Taught:
        """Return what it makes of these parts' texts, and of other workers', worker after worker."""
        queries = join([self._encoder.encode(part.taught_queries) for part in parts])
        passages = join([self._encoder.encode(part.taught_passages) for part in parts])
        return Taught(gather(queries, pool), gather(passages, pool))


def teacher_config(recipe: Recipe) -> BackboneRetriever | None:
    """Return the retriever that a recipe names as a teacher, with the recipe's lengths; None if it names none.

    Raises:
        ValueError: it is not known, or not one over a backbone.
    """
    if recipe.teacher is None or recipe.teacher == OWN_TOKENS:
        return None
    config = load_retriever(recipe.teacher)
    if not is_trainable(config):
        raise ValueError(
            f"teacher: {recipe.teacher} is a {config.method} retriever: take one of the methods "
            f"{', '.join(TRAINABLE_METHODS)}, or prepare a training set with scores"
        )
    return with_training_lengths(config, recipe)


def open_teacher(recipe: Recipe, hidden_size: int, device: str) -> Teacher | None:
    """Load the teacher that a recipe names, if any, for a student whose vectors have `hidden_size` dimensions.

    Raises:
        ValueError: it cannot be loaded, or vectors are to be aligned that differ in their dimensions.
    """
    config = teacher_config(recipe)
    if config is None:
        return None
    teacher = Teacher(config, device)
    if recipe.distillation == "align" and teacher.hidden_size != hidden_size:
        raise ValueError(
            f"distillation: align, but the vectors of {recipe.teacher} have {teacher.hidden_size} dimensions and these "
            f"{hidden_size}: take kl, which needs scores only"
        )
    return teacher

"""Base class of rerankers: a masked diffusion backbone that scores the passages of a query."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from diffretriever.backbones.base import Backbone
from diffretriever.backbones.loader import load_backbone
from diffretriever.collections import Passage
from diffretriever.encoders.batching import tokens_per_batch


class Reranker(ABC):
    """Scores passages for a query."""

    def __init__(self, config: Any, backbone: Backbone) -> None:
        """Raises `ValueError` for a backbone that has no mask token."""
        if backbone.vocabulary.mask_token_id is None:
            raise ValueError("this backbone has no mask token, so it cannot fill in a text: choose another one")
        self.config, self.backbone = config, backbone
        self.tokens_per_batch = tokens_per_batch(backbone.device)

    @classmethod
    def load(cls, config: Any, device: str = "auto") -> Self:
        """Load the backbone, its adapter if any, and its tokenizer.

        Raises:
            ValueError: The checkpoint is missing or damaged, or has no mask token.
        """
        rope_factor = getattr(config, "rope_factor", 1.0)
        backbone = load_backbone(**config.backbone.model_dump(), device=device, rope_factor=rope_factor)
        backbone.freeze()
        return cls(config, backbone)

    @property
    def identity(self) -> str:
        """Config and digest of the weights as JSON, which identify the scores; without paths."""
        settings = self.config.model_dump(mode="json", exclude={"backbone"})
        return json.dumps([settings, self.backbone.weights_digest, self.backbone.precision], sort_keys=True)

    @abstractmethod
    def score(self, query: str, passages: Sequence[Passage]) -> np.ndarray:
        """Return scores of N passages, best first in the run, float64 [N]; higher is better.

        Raises:
            ValueError: A score is not finite, or the prompt leaves no tokens for a passage.
        """

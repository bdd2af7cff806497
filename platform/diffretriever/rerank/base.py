"""The reranker interface: one query and its candidate passages in, one score a passage out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from diffretriever.backbones import Backbone
from diffretriever.collections import Passage
from diffretriever.schemas.rerank import RerankerConfig


class Reranker(ABC):
    """Scores passages for a query. A passage's score does not depend on the passages it is scored with."""

    def __init__(self, config: RerankerConfig, backbone: Backbone) -> None:
        self.config = config
        self.backbone = backbone

    @classmethod
    @abstractmethod
    def load(cls, config: Any, device: str) -> Self:
        """Load the model of `config` onto `device`; see `load_reranker`."""

    @property
    def precision(self) -> str:
        """Precision of the weights, such as `bfloat16`."""
        return self.backbone.precision

    @property
    def identity(self) -> str:
        """All that scores depend on besides the texts, as JSON: config and weights, not where the weights lie."""
        settings = self.config.model_dump(mode="json", exclude={"backbone"})
        return json.dumps([settings, self.backbone.weights_digest, self.precision], sort_keys=True)

    @abstractmethod
    def score(self, query: str, passages: Sequence[Passage]) -> np.ndarray:
        """Return float64 [N], one finite score a passage; higher is better.

        Raises:
            ValueError: a score is not finite; the message names the passage.
        """

"""Reranking by a masked diffusion backbone, and the named rerankers."""

from __future__ import annotations

from pydantic import TypeAdapter

from diffretriever.presets import Presets, absolute_source
from diffretriever.schemas.rerank import RerankerConfig

__all__ = ["reranker_config", "reranker_names"]

_PRESETS: Presets[RerankerConfig] = Presets("reranker", "rerankers.yaml", TypeAdapter(RerankerConfig))


def reranker_names() -> list[str]:
    """Return the names of all presets."""
    return _PRESETS.names()


def reranker_config(name: str, backbone: str | None = None) -> RerankerConfig:
    """Load the reranker `name`, a preset or YAML file; `backbone` replaces its backbone.

    Raises:
        ValueError: Unknown preset, file or key.
    """
    config = _PRESETS.load(name)
    if backbone is None:
        return config
    backbone_config = config.backbone.model_copy(update={"source": absolute_source(backbone), "revision": None})
    return config.model_copy(update={"backbone": backbone_config})

"""Named rerankers, and reranker descriptions in YAML files."""

from __future__ import annotations

from pydantic import TypeAdapter

from diffretriever.presets import Presets, lasting_place
from schemas.rerank import RerankerConfig

_RERANKERS: Presets[RerankerConfig] = Presets("reranker", "rerankers.yaml", TypeAdapter(RerankerConfig))


def reranker_names() -> list[str]:
    """Return the names of all presets."""
    return _RERANKERS.names()


def reranker_config(name: str, backbone: str | None = None) -> RerankerConfig:
    """Return the reranker called `name`, or described by the YAML file `name`, with its backbone replaced if given.

    Raises:
        ValueError: no such preset or file, or an unknown key.
    """
    config = _RERANKERS.load(name)
    if backbone is None:
        return config
    place = config.backbone.model_copy(update={"source": lasting_place(backbone), "revision": None})
    return config.model_copy(update={"backbone": place})

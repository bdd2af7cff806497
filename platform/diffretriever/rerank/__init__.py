"""Reranking: query and passages to scores, and the named rerankers.

A method is a file here, a config in `schemas.rerank` and a line below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from diffretriever.presets import Presets, absolute_source
from diffretriever.schemas.rerank import RerankerConfig

if TYPE_CHECKING:
    from diffretriever.rerank.base import Reranker

__all__ = ["RERANKERS", "load_reranker", "reranker_config", "reranker_names"]

RERANKERS: dict[str, str] = {
    "query-likelihood": "diffretriever.rerank.likelihood:QueryLikelihood",
}
"""`method` of a reranker config → the class that runs it, as "module:class"."""
_PRESETS: Presets[RerankerConfig] = Presets("reranker", "rerankers.yaml", TypeAdapter(RerankerConfig))


def load_reranker(config: RerankerConfig, device: str = "auto") -> Reranker:
    """Load the model of `config` onto `device` and return its reranker.

    Raises:
        ValueError: the checkpoint is not there, not understood, or lacks what the method needs.
    """
    module, name = RERANKERS[config.method].split(":")
    found: type[Reranker] = getattr(import_module(module), name)
    return found.load(config, device)


def reranker_names() -> list[str]:
    """Return the names of all presets."""
    return _PRESETS.names()


def reranker_config(name: str, backbone: str | None = None) -> RerankerConfig:
    """Return the reranker called `name`, or described by the YAML file `name`, with its backbone replaced if given.

    Raises:
        ValueError: no such preset or file, or an unknown key.
    """
    config = _PRESETS.load(name)
    if backbone is None:
        return config
    place = config.backbone.model_copy(update={"source": absolute_source(backbone), "revision": None})
    return config.model_copy(update={"backbone": place})

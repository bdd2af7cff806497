"""Reranking: query and passages to scores. A method is a file here, a config in `schemas.rerank`, a line below."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from schemas.rerank import RerankerConfig

if TYPE_CHECKING:
    from diffretriever.rerank.base import Reranker

__all__ = ["RERANKERS", "load_reranker"]

RERANKERS: dict[str, str] = {
    "query-likelihood": "diffretriever.rerank.likelihood:QueryLikelihood",
}
"""`method` of a reranker config → the class that runs it, as "module:class"."""


def load_reranker(config: RerankerConfig, device: str = "auto") -> Reranker:
    """Load the model of `config` onto `device` and return its reranker.

    Raises:
        ValueError: the checkpoint is not there, not understood, or lacks what the method needs.
    """
    module, name = RERANKERS[config.method].split(":")
    found: type[Reranker] = getattr(import_module(module), name)
    return found.load(config, device)
